package metrics

import "github.com/prometheus/client_golang/prometheus"

// An ejectedCollector shows how many endpoints do not answer, of Services that have such endpoints.
type ejectedCollector func() map[Service]int

var ejectedDesc = prometheus.NewDesc("kube_nft_ejected_endpoints",
	"Endpoints of a Service that get no new connections from this node because they do not answer, or that are being "+
		"tried again (kube-nft.io/eject). There is no series for a Service without such an endpoint; an endpoint counts for "+
		"each port.", []string{"namespace", "service"}, nil)

// Describe implements prometheus.Collector.
func (c ejectedCollector) Describe(descs chan<- *prometheus.Desc) { descs <- ejectedDesc }

// Collect implements prometheus.Collector.
func (c ejectedCollector) Collect(metrics chan<- prometheus.Metric) {
	for service, n := range c() {
		metrics <- prometheus.MustNewConstMetric(ejectedDesc, prometheus.GaugeValue, float64(n), service.Namespace,
			service.Name)
	}
}
