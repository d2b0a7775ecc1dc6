package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nft/kube-nft/sync/ejection"
	"github.com/kube-nft/kube-nft/sync/flows"
)

// A collector shows state that it reads at the time of a scrape.
type collector struct {
	descs   []*prometheus.Desc
	collect func(chan<- prometheus.Metric)
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(metrics chan<- prometheus.Metric) { c.collect(metrics) }

func gauge(desc *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

func counter(desc *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, labels...)
}

var (
	entriesDesc = prometheus.NewDesc("kube_nft_conntrack_entries",
		"Conntrack entries in this network namespace.", nil, nil)
	limitDesc = prometheus.NewDesc("kube_nft_conntrack_entries_limit",
		"Maximum number of conntrack entries; at the maximum, the kernel drops packets of new connections.", nil, nil)
	ejectedDesc = prometheus.NewDesc("kube_nft_ejected_endpoints",
		"Endpoints of a Service that get no new connections from this node because they do not answer, or that are "+
			"being tried again (kube-nft.io/eject). There is no series for a Service without such an endpoint; an endpoint "+
			"counts for each port.", []string{"namespace", "service"}, nil)
)

// newUsageCollector shows how full connection tracking is. It leaves out what cannot be read.
func newUsageCollector(usage func() (entries, limit int64, err error)) *collector {
	return &collector{[]*prometheus.Desc{entriesDesc, limitDesc}, func(metrics chan<- prometheus.Metric) {
		if entries, limit, err := usage(); err == nil {
			metrics <- gauge(entriesDesc, float64(entries))
			metrics <- gauge(limitDesc, float64(limit))
		}
	}}
}

// newEjectedCollector shows how many endpoints do not answer, of Services that have such endpoints.
func newEjectedCollector(endpoints func() []ejection.Endpoint) *collector {
	return &collector{[]*prometheus.Desc{ejectedDesc}, func(metrics chan<- prometheus.Metric) {
		count := make(map[flows.Service]int)
		for _, e := range endpoints() {
			count[flows.Service{Namespace: e.Port.Namespace, Name: e.Port.Service}]++
		}
		for service, n := range count {
			metrics <- gauge(ejectedDesc, float64(n), service.Namespace, service.Name)
		}
	}}
}
