package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

// flowMetrics are about connections that a commit made stale.
type flowMetrics struct {
	duration *prometheus.HistogramVec
	deleted  *prometheus.CounterVec
}

func newFlowMetrics(families []tracker.Family) *flowMetrics {
	return &flowMetrics{
		duration: histogramPerFamily("kubeproxy_conntrack_reconciler_sync_duration_seconds",
			"Time that removing stale connections took after a commit.", syncBuckets, families),
		deleted: counterPerFamily("kubeproxy_conntrack_reconciler_deleted_entries_total",
			"Connections that were removed from connection tracking because a commit had made them stale.", families),
	}
}

func (f *flowMetrics) register(registry *prometheus.Registry) {
	registry.MustRegister(f.duration, f.deleted)
}

func (f *flowMetrics) observe(families []tracker.Family, r *proxysync.Report) {
	if !r.Flows.Ran {
		return
	}
	for _, family := range families {
		f.duration.WithLabelValues(family.String()).Observe(r.Flows.Duration.Seconds())
		f.deleted.WithLabelValues(family.String()).Add(float64(r.Flows.Deleted[family]))
	}
}
