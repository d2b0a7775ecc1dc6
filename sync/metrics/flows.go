package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nft/kube-nft/sync/flows"
)

// A Flows counts what connections to Services move: *flows.Counter.
type Flows interface {
	Usages() []flows.Usage
	State() flows.State
}

// CountFlows makes scrapes show what connections to Services have moved. Call it once, before the first scrape.
func (m *Metrics) CountFlows(f Flows) {
	m.registry.MustRegister(&collector{[]*prometheus.Desc{flowBytesDesc, flowPacketsDesc, flowEndedDesc, flowDurationDesc,
		flowLostDesc}, func(metrics chan<- prometheus.Metric) {
		for _, u := range f.Usages() {
			collectUsage(&u, metrics)
		}
		metrics <- counter(flowLostDesc, float64(f.State().Lost))
	}})
}

var (
	flowBytesDesc = flowDesc("service_bytes_total",
		"Bytes of IP packets, with all headers, of connections to a Service: sent by clients, or returned to them.",
		"direction")
	flowPacketsDesc = flowDesc("service_packets_total",
		"Packets of connections to a Service: sent by clients, or returned to them.", "direction")
	flowEndedDesc = flowDesc("service_ended_connections_total",
		"Connections to a Service that ended, including those that no endpoint answered.")
	flowDurationDesc = flowDesc("service_connection_duration_seconds",
		"How long connections to a Service lasted, from their first packet to the last one.")
	flowLostDesc = prometheus.NewDesc("kube_nft_flow_lost_connections_total",
		"Ended connections that --flow-metrics could not count, because too many ended at once. They may include "+
			"connections that are not to a Service.", nil, nil)
)

func flowDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kube_nft_"+name, help+" With --flow-metrics; _other stands for all Services without a "+
		"series of their own.", append([]string{"namespace", "service"}, labels...), nil)
}

func collectUsage(u *flows.Usage, metrics chan<- prometheus.Metric) {
	count := func(desc *prometheus.Desc, n uint64, labels ...string) {
		metrics <- prometheus.MustNewConstMetricWithCreatedTimestamp(desc, prometheus.CounterValue, float64(n), u.Since,
			append([]string{u.Service.Namespace, u.Service.Name}, labels...)...)
	}
	count(flowBytesDesc, u.Sent.Bytes, "sent")
	count(flowBytesDesc, u.Returned.Bytes, "returned")
	count(flowPacketsDesc, u.Sent.Packets, "sent")
	count(flowPacketsDesc, u.Returned.Packets, "returned")
	count(flowEndedDesc, u.Ended)
	buckets := make(map[float64]uint64, len(flows.Bounds))
	for i, bound := range flows.Bounds {
		buckets[bound] = u.Durations[i]
	}
	metrics <- prometheus.MustNewConstHistogramWithCreatedTimestamp(flowDurationDesc, u.Timed, u.Seconds, buckets,
		u.Since, u.Service.Namespace, u.Service.Name)
}
