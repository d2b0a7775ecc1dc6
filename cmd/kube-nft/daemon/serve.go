package daemon

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"net/netip"

	"go.uber.org/zap"
	"sigs.k8s.io/yaml"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/sync/health"
	"github.com/kube-nft/kube-nft/sync/metrics"
	"github.com/kube-nft/kube-nft/sync/web"
)

// proxyMode is the answer of /proxyMode: kube-proxy's name for the mode that kube-nft replaces.
const proxyMode = "nftables"

// newServers returns the servers of the settings.
func newServers(c *config.Config, proxy *health.Proxy, m *metrics.Metrics, events *events, log *zap.Logger) ([]*web.Server, error) {
	metricsHandler, err := metricsHandler(c, m, log)
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
			Failed:    func(err error) { events.node(warning, reason, "Listen", err.Error()) },
			Log:       log,
		})
	}
	add("health", "--healthz-bind-address", "FailedToStartProxierHealthcheck", c.Healthz, false, healthHandler(proxy, m))
	add("metrics", "--metrics-bind-address", "FailedToStartMetricServer", c.Metrics, true, metricsHandler)
	return servers, nil
}

// healthHandler answers the kubelet and load balancers.
func healthHandler(proxy *health.Proxy, m *metrics.Metrics) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", m.CountHealthz(proxy.Healthz))
	mux.Handle("/livez", m.CountLivez(proxy.Livez))
	mux.Handle("/readyz", m.CountReadyz(proxy.Readyz))
	return mux
}

// metricsHandler answers Prometheus and people.
func metricsHandler(c *config.Config, m *metrics.Metrics, log *zap.Logger) (http.Handler, error) {
	settings, err := configz(c)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", m.Handler(log))
	mux.Handle("/metrics/slis", m.ChecksHandler(log))
	mux.Handle("/healthz", m.CountPing(constant("text/plain; charset=utf-8", "ok")))
	mux.Handle("/proxyMode", constant("text/plain; charset=utf-8", proxyMode))
	mux.Handle("/configz", constant("application/json", settings))
	if c.Profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux, nil
}

// configz returns the effective configuration in kube-proxy's form.
func configz(c *config.Config) (string, error) {
	text, err := c.YAML()
	if err != nil {
		return "", err
	}
	body, err := yaml.YAMLToJSON(text)
	if err != nil {
		return "", fmt.Errorf("effective configuration: %w", err)
	}
	return fmt.Sprintf(`{"kubeproxy.config.k8s.io":%s}`, body), nil
}

// constant answers every request with the same body.
func constant(contentType, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Write([]byte(body)) // fails only if the client is gone
	})
}
