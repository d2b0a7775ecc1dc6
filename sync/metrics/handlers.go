package metrics

import (
	"errors"
	"log"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// checks are the results of health checks, as every Kubernetes component shows them at
// /metrics/slis: apart from /metrics, so that they can be scraped more often.
type checks struct {
	registry *prometheus.Registry
	last     *prometheus.GaugeVec
	total    *prometheus.CounterVec
}

// Values of the label status.
const (
	statusSuccess = "success"
	statusError   = "error"
)

func newChecks() *checks {
	registry := prometheus.NewPedanticRegistry()
	f := promauto.With(registry)
	return &checks{
		registry: registry,
		last: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck",
			Help: "Result of the last health check: 1 for success, 0 for an error. At /metrics/slis.",
		}, []string{labelName, labelType}),
		total: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total",
			Help: "Results of health checks. At /metrics/slis.",
		}, []string{labelName, labelType, labelStatus}),
	}
}

// count returns a handler that answers as check does. It counts the answers under a name, and under
// a path without its slash.
func (c *checks) count(name, path string, check http.Handler) http.Handler {
	for _, status := range []string{statusSuccess, statusError} {
		c.total.WithLabelValues(name, path, status)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := answer{ResponseWriter: w, code: http.StatusOK}
		check.ServeHTTP(&answer, r)
		status, value := statusSuccess, 1.0
		if answer.code != http.StatusOK {
			status, value = statusError, 0
		}
		c.last.WithLabelValues(name, path).Set(value)
		c.total.WithLabelValues(name, path, status).Inc()
	})
}

// An answer records its status code.
type answer struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(code int) {
	a.code = code
	a.ResponseWriter.WriteHeader(code)
}

// maxScrapes is how many scrapes gather at a time; others get status 503. scrapeTimeout ends one that
// takes longer, before the server ends its connection. With it an answer is complete before it is
// sent: a client that does not read keeps no other client from a scrape.
const (
	maxScrapes    = 4
	scrapeTimeout = 20 * time.Second
)

// Handler answers scrapes, in the text format or, on request, in OpenMetrics. A metric that cannot
// be gathered is logged and does not hide the others.
func (m *Metrics) Handler(log *zap.Logger) http.Handler { return newHandler(m.registry, log) }

// ChecksHandler is Handler for /metrics/slis.
func (m *Metrics) ChecksHandler(log *zap.Logger) http.Handler {
	return newHandler(m.checks.registry, log)
}

func newHandler(registry *prometheus.Registry, log *zap.Logger) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog:            scrapeLog{zap.NewStdLog(log)},
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
		Timeout:             scrapeTimeout,
		EnableOpenMetrics:   true,
	})
}

// A scrapeLog leaves out scrapes whose client has gone: any program on the node can make many of these.
type scrapeLog struct{ *log.Logger }

// Println implements promhttp.Logger.
func (l scrapeLog) Println(v ...any) {
	for _, part := range v {
		if err, ok := part.(error); ok && errors.Is(err, http.ErrHandlerTimeout) {
			return
		}
	}
	l.Logger.Println(v...)
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

// CountPing counts the answers of /healthz of the metrics server, which only shows that the server
// runs. kube-proxy has the same check.
func (m *Metrics) CountPing(ping http.Handler) http.Handler {
	return m.checks.count("ping", "healthz", ping)
}

// checkProxy is the name of checks that look at the state of the proxy.
const checkProxy = "proxy"
