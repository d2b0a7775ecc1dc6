package metrics

import "github.com/prometheus/client_golang/prometheus"

// A connectionsCollector shows how full connection tracking is at the time of a scrape. It leaves out
// what cannot be read.
type connectionsCollector func() (entries, limit int64, err error)

var (
	entriesDesc = prometheus.NewDesc("kube_nft_conntrack_entries",
		"Conntrack entries in this network namespace.", nil, nil)
	limitDesc = prometheus.NewDesc("kube_nft_conntrack_entries_limit",
		"Maximum number of conntrack entries; at the maximum, the kernel drops packets of new connections.", nil, nil)
)

func (c connectionsCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- entriesDesc
	descs <- limitDesc
}

func (c connectionsCollector) Collect(metrics chan<- prometheus.Metric) {
	entries, limit, err := c()
	if err != nil {
		return
	}
	metrics <- prometheus.MustNewConstMetric(entriesDesc, prometheus.GaugeValue, float64(entries))
	metrics <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(limit))
}
