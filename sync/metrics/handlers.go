package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// maxScrapes is how many scrapes are answered at a time; more get status 503.
const maxScrapes = 4

// Handler answers scrapes, in the text format and, if asked for, in OpenMetrics. A metric
// that cannot be gathered does not hide the others: it is logged.
func (m *Metrics) Handler(log *zap.Logger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            zap.NewStdLog(log),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
		EnableOpenMetrics:   true,
	})
}

// CountHealthz and CountLivez count the answers of a probe by status code.
func (m *Metrics) CountHealthz(probe http.HandlerFunc) http.Handler {
	return promhttp.InstrumentHandlerCounter(m.healthz, probe)
}

// CountLivez is CountHealthz for /livez.
func (m *Metrics) CountLivez(probe http.HandlerFunc) http.Handler {
	return promhttp.InstrumentHandlerCounter(m.livez, probe)
}
