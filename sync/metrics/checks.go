package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
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
	c := &checks{
		registry: prometheus.NewPedanticRegistry(),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck",
			Help: "Last answer of a health check: 1 for success, 0 for an error. At /metrics/slis.",
		}, []string{labelName, labelType}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total",
			Help: "Answers of health checks. At /metrics/slis.",
		}, []string{labelName, labelType, labelStatus}),
	}
	c.registry.MustRegister(c.last, c.total)
	return c
}

// count returns a handler that answers as check does, and counts it under a name and a path
// without its slash.
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

// An answer remembers its status code.
type answer struct {
	http.ResponseWriter
	code int
}

// WriteHeader is http.ResponseWriter's.
func (a *answer) WriteHeader(code int) {
	a.code = code
	a.ResponseWriter.WriteHeader(code)
}
