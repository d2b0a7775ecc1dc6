package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// maxScrapes is how many scrapes are answered at a time; more get status 503.
const maxScrapes = 4

// Handler answers scrapes, in the text format and, if asked for, in OpenMetrics. A metric
// that cannot be gathered does not hide the others: it is logged.
func (m *Metrics) Handler(log *zap.Logger) http.Handler { return newHandler(m.registry, log) }

// ChecksHandler is Handler for /metrics/slis.
func (m *Metrics) ChecksHandler(log *zap.Logger) http.Handler {
	return newHandler(m.checks.registry, log)
}

func newHandler(registry *prometheus.Registry, log *zap.Logger) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog:            zap.NewStdLog(log),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
		EnableOpenMetrics:   true,
	})
}

// CountHealthz counts the answers of the probe /healthz by status code.
func (m *Metrics) CountHealthz(probe http.HandlerFunc) http.Handler {
	return m.checks.count(checkProxy, "healthz", promhttp.InstrumentHandlerCounter(m.healthz, probe))
}

// CountLivez is CountHealthz for /livez.
func (m *Metrics) CountLivez(probe http.HandlerFunc) http.Handler {
	return m.checks.count(checkProxy, "livez", promhttp.InstrumentHandlerCounter(m.livez, probe))
}

// CountReadyz counts the answers of the probe /readyz.
func (m *Metrics) CountReadyz(probe http.HandlerFunc) http.Handler {
	return m.checks.count(checkProxy, "readyz", probe)
}

// CountPing counts the answers of /healthz of the metrics server, which says that there is
// one: the check that kube-proxy has.
func (m *Metrics) CountPing(ping http.Handler) http.Handler {
	return m.checks.count("ping", "healthz", ping)
}

// checkProxy is the name of checks that look at the state of the proxy.
const checkProxy = "proxy"
