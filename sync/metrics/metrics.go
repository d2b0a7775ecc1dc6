// Package metrics counts what the proxy does, for Prometheus.
//
// Names and labels that begin with kubeproxy_ are kube-proxy's and have its meaning; names that
// begin with kube_nft_ are ours. Nothing is global: each Metrics has its own registry.
package metrics

import (
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/version"

	proxysync "github.com/kube-nft/kube-nft/sync"
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
		healthz:  probe("kubeproxy_proxy_healthz_total", "Answers of /healthz by status code."),
		livez:    probe("kubeproxy_proxy_livez_total", "Answers of /livez by status code."),
		checks:   newChecks(),
	}
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registerChanges(f, config.Changes)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kube_nft_health_check_ports_unserved",
		Help: "Services whose health-check node port is not served on this node, as somebody else has it or as there are " +
			"too many; each family counts.",
	}, func() float64 { return float64(config.Unserved()) })
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kube_nft_node_missing",
		Help: "1 if there is no Node object of this node's name; what was last known of it holds.",
	}, func() float64 {
		if config.NodeMissing() {
			return 1
		}
		return 0
	})
	if config.Kernel != nil {
		registry.MustRegister(&kernelCollector{kernel: config.Kernel, families: config.Families})
	}
	if config.Connections != nil {
		registry.MustRegister(connectionsCollector(config.Connections))
	}
	if config.Component != nil {
		f.NewGauge(prometheus.GaugeOpts{
			Name: "kubernetes_build_info",
			Help: "What this binary was built from, in the labels of all Kubernetes components; always 1.",
			ConstLabels: prometheus.Labels{
				"major": config.Component.Major, "minor": config.Component.Minor, "git_version": config.Component.GitVersion,
				"git_commit": config.Component.GitCommit, "git_tree_state": config.Component.GitTreeState,
				"build_date": config.Component.BuildDate,
				"go_version": config.Component.GoVersion, "compiler": config.Component.Compiler,
				"platform": config.Component.Platform,
			},
		}).Set(1)
	}
	enabled := f.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubernetes_feature_enabled", Help: "Feature gates that kube-nft knows: 1 if on.",
	}, []string{labelName, labelStage})
	for _, gate := range config.Gates {
		value := 0.0
		if gate.On {
			value = 1
		}
		enabled.WithLabelValues(gate.Name, gate.Stage).Set(value)
	}
	if config.Build != nil { // a constant whose labels say what the binary was built from
		revision := ""
		for _, setting := range config.Build.Settings {
			if setting.Key == "vcs.revision" {
				revision = setting.Value
			}
		}
		f.NewGauge(prometheus.GaugeOpts{
			Name: "kube_nft_build_info",
			Help: "What this binary was built from; always 1.",
			ConstLabels: prometheus.Labels{"version": config.Build.Main.Version, "revision": revision,
				"go_version": config.Build.GoVersion},
		}).Set(1)
	}
	return m
}

// Takeover adds kube_nft_takeover: the state of the takeover from kube-proxy, as one series for
// each state, 1 for the current state and 0 for the others. Call it once at most; current may be
// called from any goroutine.
func (m *Metrics) Takeover(states []string, current func() string) {
	for _, state := range states {
		promauto.With(m.registry).NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kube_nft_takeover",
			Help: "How far the takeover from kube-proxy is: 1 for the current state. It waits for a live kube-proxy to " +
				"end.",
			ConstLabels: prometheus.Labels{"state": state},
		}, func() float64 {
			if current() == state {
				return 1
			}
			return 0
		})
	}
}

// Held adds the metric of the safety check, and returns the
// function that sets it.
func (m *Metrics) Held(reasons []string) (set func(reason string, held bool)) {
	gauge := promauto.With(m.registry).NewGaugeVec(prometheus.GaugeOpts{
		Name: "kube_nft_held",
		Help: "1 while the safety check keeps Services that would be removed: by reason, a takeover from kube-proxy, a " +
			"source that has nearly nothing at a start, or a new list that lacks nearly all objects.",
	}, []string{labelReason})
	for _, reason := range reasons {
		gauge.WithLabelValues(reason)
	}
	return func(reason string, held bool) {
		value := 0.0
		if held {
			value = 1
		}
		gauge.WithLabelValues(reason).Set(value)
	}
}

// ForeignProxy adds kube_nft_foreign_proxy. Call it once at most; found may be called from any
// goroutine.
func (m *Metrics) ForeignProxy(found func() bool) {
	promauto.With(m.registry).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kube_nft_foreign_proxy",
		Help: "Whether kube-proxy has rules on this node as well: 1 if so. It is not there with --service-proxy-name.",
	}, func() float64 {
		if found() {
			return 1
		}
		return 0
	})
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
			Name: name + "total", Help: "Changes of " + kind.plural + " that mean something to this proxy.",
		}, func() float64 { total, _ := changes(); return float64(kind.count(total)) })
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Name: name + "pending", Help: "Changes of " + kind.plural + " that no sync has taken yet.",
		}, func() float64 { _, pending := changes(); return float64(kind.count(pending)) })
	}
}
