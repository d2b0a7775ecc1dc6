// Package metrics counts what the proxy does, for Prometheus. Make a Metrics with New, call Committed after each commit
// and Failed after each failure, and serve its Handler.
//
// Names and labels that begin with kubeproxy_ are kube-proxy's and have its meaning; names that
// begin with kube_nft_ are ours. Nothing is global: each Metrics has its own registry.
package metrics

import (
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/version"

	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/ejection"
	"github.com/kube-nft/kube-nft/tracker"
)

// Config names the sources of what this package does not count. Each function is called at every
// scrape, from any goroutine.
type Config struct {
	Families []tracker.Family // the served families
	// Changes returns the counts of tracker.Tracker.Changes.
	Changes func() (total, pending tracker.Changes)
	// Queue is the queue of the sync loop.
	Queue *proxysync.Queue
	// Unserved returns the count of health.Services.Unserved.
	Unserved func() int
	// NodeMissing reports whether there is no object of this node.
	NodeMissing func() bool
	// Kernel reads the state of nf_tables; nil leaves these metrics out.
	Kernel Kernel
	// Build is what debug.ReadBuildInfo returned; nil leaves kube_nft_build_info out.
	Build *debug.BuildInfo
	// Component is the same in the words of Kubernetes, for kubernetes_build_info; nil leaves that out.
	Component *version.Info
	// Gates are feature gates and their values.
	Gates []Gate
	// Connections returns how many entries connection tracking has and may have; nil leaves that out.
	Connections func() (entries, limit int64, err error)
	// Ejected returns the endpoints that do not answer; nil leaves that out.
	Ejected func() []ejection.Endpoint
}

// A Gate is a feature gate for kubernetes_feature_enabled. Stage is ALPHA, BETA, DEPRECATED or empty.
type Gate struct {
	Name, Stage string
	On          bool
}

// native makes a histogram a native one as well, for scrapers that ask for the protobuf format: buckets
// that grow by a tenth, 160 of them at most.
func native(opts prometheus.HistogramOpts) prometheus.HistogramOpts {
	opts.NativeHistogramBucketFactor = 1.1
	opts.NativeHistogramMaxBucketNumber = 160
	opts.NativeHistogramMinResetDuration = time.Hour
	return opts
}

// Metrics are the metrics of one process. Make it with New. Its methods may be called from any
// goroutine, except Committed, which is for the sync loop's.
type Metrics struct {
	registry *prometheus.Registry
	asks     sync.Mutex // for the collector that asks nf_tables: a scrape runs all of them at the same time
	families []tracker.Family
	sync     *syncMetrics
	objects  *objectMetrics
	healthz  *prometheus.CounterVec
	livez    *prometheus.CounterVec
	checks   *checks
}

// New returns Metrics in which nothing has happened yet. Series with a known set of labels exist
// from the start: if a series appeared with its first event, a rate over it would miss that event.
func New(config Config) *Metrics {
	registry := prometheus.NewPedanticRegistry()
	f := promauto.With(registry)
	probe := func(name, help string) *prometheus.CounterVec {
		counter := f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{labelCode})
		for _, code := range []string{"200", "503"} {
			counter.WithLabelValues(code)
		}
		return counter
	}
	m := &Metrics{
		registry: registry,
		families: config.Families,
		sync:     newSyncMetrics(f, config.Families, config.Queue),
		objects:  newObjectMetrics(f, config.Families),
		healthz:  probe("kubeproxy_proxy_healthz_total", "Responses of /healthz by status code."),
		livez:    probe("kubeproxy_proxy_livez_total", "Responses of /livez by status code."),
		checks:   newChecks(),
	}
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registerChanges(f, config.Changes)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kube_nft_health_check_ports_unserved",
		Help: "Health-check node ports that this node does not serve, because another program has the port or the " +
			"limit is reached; each IP family counts.",
	}, func() float64 { return float64(config.Unserved()) })
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kube_nft_node_missing",
		Help: "1 while there is no Node object with the name of this node; kube-nft then uses the last known one.",
	}, func() float64 { return oneIf(config.NodeMissing()) })
	if config.Kernel != nil {
		registry.MustRegister(newKernelCollector(config.Kernel, config.Families, &m.asks))
	}
	if config.Connections != nil {
		registry.MustRegister(newUsageCollector(config.Connections))
	}
	if config.Ejected != nil {
		registry.MustRegister(newEjectedCollector(config.Ejected))
	}
	setBuild(f, config.Build, config.Component)
	setGates(f, config.Gates)
	return m
}

// oneIf is a boolean as the value of a gauge.
func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// setBuild exports what this binary was built from, as labels of constants.
func setBuild(f promauto.Factory, build *debug.BuildInfo, component *version.Info) {
	constant := func(name, help string, labels prometheus.Labels) {
		f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}).Set(1)
	}
	if component != nil {
		constant("kubernetes_build_info",
			"Version and commit of this binary, with the labels that all Kubernetes components have; always 1.",
			prometheus.Labels{
				"major": component.Major, "minor": component.Minor, "git_version": component.GitVersion,
				"git_commit": component.GitCommit, "git_tree_state": component.GitTreeState,
				"build_date": component.BuildDate, "go_version": component.GoVersion, "compiler": component.Compiler,
				"platform": component.Platform,
			})
	}
	if build == nil {
		return
	}
	revision := ""
	for _, setting := range build.Settings {
		if setting.Key == "vcs.revision" {
			revision = setting.Value
		}
	}
	constant("kube_nft_build_info", "Version and commit of this binary; always 1.",
		prometheus.Labels{"version": build.Main.Version, "revision": revision, "go_version": build.GoVersion})
}

// setGates exports the feature gates.
func setGates(f promauto.Factory, gates []Gate) {
	enabled := f.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubernetes_feature_enabled", Help: "Feature gates that kube-nft knows: 1 if enabled.",
	}, []string{labelName, labelStage})
	for _, gate := range gates {
		enabled.WithLabelValues(gate.Name, gate.Stage).Set(oneIf(gate.On))
	}
}

// Takeover adds kube_nft_takeover: the state of the takeover from kube-proxy, as one series for
// each state, 1 for the current state and 0 for the others. Call it once at most; current may be
// called from any goroutine.
func (m *Metrics) Takeover(states []string, current func() string) {
	for _, state := range states {
		promauto.With(m.registry).NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "kube_nft_takeover",
			Help:        "State of the takeover from kube-proxy: 1 for the current state.",
			ConstLabels: prometheus.Labels{"state": state},
		}, func() float64 { return oneIf(current() == state) })
	}
}

// SafetyCheck adds kube_nft_safety_check, and returns the function that sets it.
func (m *Metrics) SafetyCheck(reasons []string) (set func(reason string, active bool)) {
	gauge := promauto.With(m.registry).NewGaugeVec(prometheus.GaugeOpts{
		Name: "kube_nft_safety_check",
		Help: "1 while the safety check keeps Services that kube-nft would otherwise remove. reason: a takeover " +
			"from kube-proxy (takeover), nearly no objects at a start (source), or a new list without nearly all " +
			"objects (list).",
	}, []string{labelReason})
	for _, reason := range reasons {
		gauge.WithLabelValues(reason)
	}
	return func(reason string, active bool) {
		gauge.WithLabelValues(reason).Set(oneIf(active))
	}
}

// ForeignProxy adds kube_nft_foreign_proxy, and returns the function that sets it. Call it once at most.
func (m *Metrics) ForeignProxy() (set func(found bool)) {
	gauge := promauto.With(m.registry).NewGauge(prometheus.GaugeOpts{
		Name: "kube_nft_foreign_proxy",
		Help: "1 while kube-proxy also has rules on this node. Absent with --service-proxy-name.",
	})
	return func(found bool) { gauge.Set(oneIf(found)) }
}

// ForwardRefusals adds kube_nft_forward_refusals, and returns the function that sets it. Call it once at most.
func (m *Metrics) ForwardRefusals() (set func(number int)) {
	gauge := promauto.With(m.registry).NewGauge(prometheus.GaugeOpts{
		Name: "kube_nft_forward_refusals",
		Help: "Chains of other programs, and kernel parameters, that refuse connections to endpoints on their way through " +
			"this node.",
	})
	return func(number int) { gauge.Set(float64(number)) }
}

// Labels. Values of ip_family are IPv4 and IPv6.
const (
	labelFamily = "ip_family"
	labelPolicy = "traffic_policy" // internal or external
	labelCode   = "code"           // of HTTP
	labelReason = "reason"         // why the safety check keeps Services
	labelKind   = "kind"           // of a Kubernetes object
	labelSet    = "set"            // name of an nftables set or map
	labelHost   = "host"           // of the API server, with its port
	labelMethod = "method"         // of HTTP, as verb
	labelVerb   = "verb"
	labelName   = "name"   // of a health check, or of a feature gate
	labelStage  = "stage"  // of a feature gate
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

// registerChanges exports the tracker's counts of changes.
func registerChanges(f promauto.Factory, changes func() (total, pending tracker.Changes)) {
	for _, kind := range []struct {
		name, plural string
		count        func(tracker.Changes) uint64
	}{
		{"service", "Services", func(c tracker.Changes) uint64 { return c.Services }},
		{"endpoint", "EndpointSlices", func(c tracker.Changes) uint64 { return c.Slices }},
	} {
		name := "kubeproxy_sync_proxy_rules_" + kind.name + "_changes_"
		f.NewCounterFunc(prometheus.CounterOpts{
			Name: name + "total", Help: "Changes of " + kind.plural + " that affect this proxy.",
		}, func() float64 { total, _ := changes(); return float64(kind.count(total)) })
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Name: name + "pending", Help: "Changes of " + kind.plural + " that wait for a sync.",
		}, func() float64 { _, pending := changes(); return float64(kind.count(pending)) })
	}
}
