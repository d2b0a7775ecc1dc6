package daemon

import (
	"context"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/sync/health"
	"github.com/kube-nft/kube-nft/sync/metrics"
	"github.com/kube-nft/kube-nft/sync/web"
)

// newServers returns the servers of the settings. flags are what /flagz shows.
func (m *monitor) newServers(flags map[string]string) ([]*web.Server, error) {
	c := m.config
	metricsHandler, err := metricsHandler(c, flags, m.metrics, m.log)
	if err != nil {
		return nil, err
	}
	var servers []*web.Server
	add := func(name, flag, reason string, address netip.AddrPort, keepAlive bool, handler http.Handler) {
		if !address.IsValid() {
			return
		}
		servers = append(servers, &web.Server{
			Name: name, Address: address.String(), Flag: flag, Handler: handler,
			KeepAlive: keepAlive,
			HardFail:  c.BindAddressHardFail,
			Failed:    func(err error) { m.events.Node(reason, "Listen", err.Error()) },
			Expected:  m.awaits.Load,
			Log:       m.log,
		})
	}
	add("health", "--healthz-bind-address", "FailedToStartProxierHealthcheck", c.Healthz, false,
		healthHandler(m.proxy, m.metrics))
	add("metrics", "--metrics-bind-address", "FailedToStartMetricServer", c.Metrics, true, metricsHandler)
	return servers, nil
}

// newMetrics returns the metrics that the settings request. m has its kernel clients, health checks and Services
// already.
func (d *daemon) newMetrics(m *monitor) *metrics.Metrics {
	var scraped metrics.Kernel
	if m.scraped != nil {
		scraped = m.scraped
	}
	build, known := debug.ReadBuildInfo()
	if known {
		build.Main.Version = config.Build().GitVersion // a source archive knows what Go does not
	}
	component := config.Build()
	all := metrics.New(metrics.Config{
		Families: m.families, Changes: d.tracker.Changes, Queue: d.queue, Kernel: scraped,
		Unserved: m.services.Unserved, NodeMissing: func() bool { return nodeMissing(d.tracker) },
		Build: build, Component: &component, Gates: gates(d.config),
		Connections: func() (entries, limit int64, err error) { return conntrack.Usage(sysctlRoot) },
		Ejected:     d.ejection.Endpoints,
	})
	if d.shadow != nil {
		all.Shadow(d.shadow.Metrics)
	}
	if m.scraped != nil && d.config.ConnectionCounters {
		all.CountConnections(
			func(ctx context.Context, f nft.Family, endpoints bool) ([]readback.Connections, error) {
				return readback.ReadConnections(ctx, m.scraped, f, endpoints)
			}, d.config.EndpointCounters)
	}
	if d.flows != nil {
		all.CountFlows(d.flows)
	}
	return all
}

// gates lists the feature gates for metrics, with their stages as Kubernetes' components name them.
func gates(c *config.Config) (list []metrics.Gate) {
	for _, gate := range config.Gates {
		stage := strings.ToUpper(gate.Stage)
		if strings.Contains(stage, " ") { // GA in 1.33, since 1.7
			stage = ""
		}
		list = append(list, metrics.Gate{Name: gate.Name, Stage: stage, On: c.Gates[gate.Name]})
	}
	return list
}

// healthHandler answers the kubelet and load balancers.
func healthHandler(proxy *health.Proxy, m *metrics.Metrics) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", m.CountHealthz(proxy.Healthz))
	mux.Handle("/livez", m.CountLivez(proxy.Livez))
	mux.Handle("/readyz", m.CountReadyz(proxy.Readyz))
	return mux
}

// metricsHandler answers Prometheus and people. flags are what /flagz shows.
func metricsHandler(c *config.Config, flags map[string]string, m *metrics.Metrics,
	log *zap.Logger) (http.Handler, error) {
	settings, err := c.JSON()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", m.Handler(log))
	mux.Handle("/metrics/slis", m.ChecksHandler(log))
	mux.Handle("/healthz", m.CountPing(web.Constant("text/plain; charset=utf-8", "ok")))
	mux.Handle("/proxyMode", web.Constant("text/plain; charset=utf-8", "nftables")) // kube-proxy's name
	mux.Handle("/configz", web.Constant("application/json", string(settings)))
	paths := []string{"/configz", "/healthz", "/metrics", "/proxyMode"}
	if c.Gates[config.GateFlagz] {
		mux.Handle("/flagz", web.FlagsPage(flags))
		paths = append(paths, "/flagz")
	}
	if c.Gates[config.GateStatusz] {
		build := config.Build()
		slices.Sort(paths)
		status := web.Status{
			Started: started, GoVersion: build.GoVersion, BinaryVersion: strings.TrimPrefix(build.GitVersion, "v"),
			Follows: config.Follows, Paths: paths,
		}
		mux.Handle("/statusz", status.Page())
	}
	if c.Profiling {
		list := web.Constant("text/plain; charset=utf-8", "v\nlog-level\n")
		mux.Handle("/debug/flags", list)
		mux.Handle("/debug/flags/{$}", list)
		mux.Handle("/debug/flags/v", &web.LevelFlag{Level: c.LogLevel, Log: log, Parse: config.ParseVerbosity,
			Text: config.VerbosityText})
		mux.Handle("/debug/flags/log-level", &web.LevelFlag{Level: c.LogLevel, Log: log, Parse: config.ParseLevel,
			Text: zapcore.Level.String})
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux, nil
}

// started is when this process began to work.
var started = time.Now()
