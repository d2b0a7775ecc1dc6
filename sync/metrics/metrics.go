package metrics

import (
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kube-nft/kube-nft/tracker"
)

// Config says where what is not counted here comes from. All functions are called when
// somebody scrapes, from any goroutine.
type Config struct {
	Families []tracker.Family // that are served
	// Changes returns the counts of tracker.Tracker.Changes.
	Changes func() (total, pending tracker.Changes)
	// Unserved returns the count of health.Services.Unserved.
	Unserved func() int
	// Kernel asks nf_tables about its state; nil leaves these metrics out.
	Kernel Kernel
	// Build is what debug.ReadBuildInfo returned; nil leaves kube_nft_build_info out.
	Build *debug.BuildInfo
}

// Metrics are the metrics of one process. Make it with New. Its methods may be called from
// any goroutine, but for Committed, which is for the sync loop's.
type Metrics struct {
	registry *prometheus.Registry
	families []tracker.Family
	sync     *syncMetrics
	objects  *objectMetrics
	flows    *flowMetrics
	healthz  *prometheus.CounterVec
	livez    *prometheus.CounterVec
	checks   *checks
}

// New returns Metrics in which nothing has happened yet. Series that have a known set of
// labels exist from the start: a rate over one that appears with its first event would miss
// that event.
func New(config Config) *Metrics {
	m := &Metrics{
		registry: prometheus.NewPedanticRegistry(),
		families: config.Families,
		sync:     newSyncMetrics(config.Families),
		objects:  newObjectMetrics(config.Families),
		flows:    newFlowMetrics(config.Families),
		healthz:  newProbeCounter("kubeproxy_proxy_healthz_total", "Answers of /healthz by status code."),
		livez:    newProbeCounter("kubeproxy_proxy_livez_total", "Answers of /livez by status code."),
		checks:   newChecks(),
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.healthz, m.livez,
	)
	m.sync.register(m.registry)
	m.objects.register(m.registry)
	m.flows.register(m.registry)
	registerChanges(m.registry, config.Changes)
	m.registry.MustRegister(newUnserved(config.Unserved))
	if config.Kernel != nil {
		m.registry.MustRegister(&kernelCollector{kernel: config.Kernel, families: config.Families})
	}
	if config.Build != nil {
		m.registry.MustRegister(newBuildInfo(config.Build))
	}
	return m
}

// Gatherer returns what a scrape shows.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// newProbeCounter counts answers of a probe, whose status codes are 200 and 503.
func newProbeCounter(name, help string) *prometheus.CounterVec {
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{labelCode})
	for _, code := range []string{"200", "503"} {
		counter.WithLabelValues(code)
	}
	return counter
}

// newUnserved exports how many health-check node ports are missing.
func newUnserved(unserved func() int) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kube_nft_health_check_ports_unserved",
		Help: "Services whose health-check node port is not served on this node, as somebody else has it; each family counts.",
	}, func() float64 { return float64(unserved()) })
}

// newBuildInfo is a constant that carries what the binary was built from in its labels.
func newBuildInfo(info *debug.BuildInfo) prometheus.Collector {
	revision := ""
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			revision = setting.Value
		}
	}
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "kube_nft_build_info",
		Help:        "What this binary was built from; always 1.",
		ConstLabels: prometheus.Labels{"version": info.Main.Version, "revision": revision, "go_version": info.GoVersion},
	})
	gauge.Set(1)
	return gauge
}

// Labels. Values of ip_family are IPv4 and IPv6.
const (
	labelFamily = "ip_family"
	labelPolicy = "traffic_policy" // internal or external
	labelCode   = "code"           // of HTTP
	labelKind   = "kind"           // of a Kubernetes object
	labelSet    = "set"            // name of an nftables set or map
	labelHost   = "host"           // of the API server, with its port
	labelMethod = "method"         // of HTTP, as verb
	labelVerb   = "verb"
	labelName   = "name"   // of a health check
	labelType   = "type"   // of a health check: healthz, livez or readyz
	labelStatus = "status" // success or error
)

// perFamily makes the series of each family exist.
func perFamily[T interface {
	WithLabelValues(...string) U
}, U any](vec T, families []tracker.Family) T {
	for _, family := range families {
		vec.WithLabelValues(family.String())
	}
	return vec
}

func counterPerFamily(name, help string, families []tracker.Family) *prometheus.CounterVec {
	return perFamily(prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{labelFamily}), families)
}

func gaugePerFamily(name, help string, families []tracker.Family) *prometheus.GaugeVec {
	return perFamily(prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{labelFamily}), families)
}

func histogramPerFamily(name, help string, buckets []float64, families []tracker.Family) *prometheus.HistogramVec {
	opts := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	return perFamily(prometheus.NewHistogramVec(opts, []string{labelFamily}), families)
}

// registerChanges exports the tracker's counts of changes.
func registerChanges(registry *prometheus.Registry, changes func() (total, pending tracker.Changes)) {
	registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "kubeproxy_sync_proxy_rules_service_changes_total", Help: "Changes of Services that mean something to this proxy.",
		}, func() float64 { total, _ := changes(); return float64(total.Services) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubeproxy_sync_proxy_rules_service_changes_pending", Help: "Changes of Services that no sync has taken yet.",
		}, func() float64 { _, pending := changes(); return float64(pending.Services) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "kubeproxy_sync_proxy_rules_endpoint_changes_total", Help: "Changes of EndpointSlices that mean something to this proxy.",
		}, func() float64 { total, _ := changes(); return float64(total.Slices) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubeproxy_sync_proxy_rules_endpoint_changes_pending", Help: "Changes of EndpointSlices that no sync has taken yet.",
		}, func() float64 { _, pending := changes(); return float64(pending.Slices) }),
	)
}
