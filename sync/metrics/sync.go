package metrics

import (
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

// syncMetrics are about the sync loop. One sync brings all families up to date: metrics with the
// label ip_family count it in each.
type syncMetrics struct {
	duration, full, partial *prometheus.HistogramVec
	programming, finer      *prometheus.HistogramVec
	change                  prometheus.Histogram
	last                    *prometheus.GaugeVec
	failures                *prometheus.CounterVec

	flowDuration *prometheus.HistogramVec // of the search for stale connections
	flowLag      prometheus.Histogram
	deleted      *prometheus.CounterVec

	compile, commit           prometheus.Histogram
	batches, messages, bytes  prometheus.Counter
	retries, repairs, reviews prometheus.Counter
	sent                      kernel.Traffic // of the last call of Committed
	synced                    bool           // Committed has been called
}

// syncBuckets and programmingBuckets are kube-proxy's. commitBuckets are ours: from 0.1 ms, a
// commit of one endpoint, doubling up to 26 s; finerBuckets reach from 1 ms to 65 s.
var (
	finerBuckets       = prometheus.ExponentialBuckets(0.001, 2, 17)
	syncBuckets        = prometheus.ExponentialBuckets(0.001, 2, 15)
	commitBuckets      = prometheus.ExponentialBuckets(0.0001, 2, 19)
	programmingBuckets = slices.Concat(
		prometheus.LinearBuckets(0.25, 0.25, 2),
		prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12),
		prometheus.LinearBuckets(120, 30, 7),
	)
)

func newSyncMetrics(f promauto.Factory, families []tracker.Family, queue *proxysync.Queue) *syncMetrics {
	for _, family := range families {
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
			Help:        "Time of the last change that requested a sync, in seconds since the epoch.",
			ConstLabels: prometheus.Labels{labelFamily: family.String()},
		}, func() float64 {
			_, newest := queue.Waiting()
			if newest.IsZero() {
				return 0
			}
			return float64(newest.UnixNano()) / 1e9
		})
	}
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	histogram := func(name, help string) prometheus.Histogram {
		return f.NewHistogram(native(prometheus.HistogramOpts{Name: name, Help: help, Buckets: commitBuckets}))
	}
	counterPerFamily := func(name, help string) *prometheus.CounterVec {
		return perFamily(f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{labelFamily}), families)
	}
	histogramPerFamily := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return perFamily(f.NewHistogramVec(native(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}),
			[]string{labelFamily}), families)
	}
	return &syncMetrics{
		duration: histogramPerFamily("kubeproxy_sync_proxy_rules_duration_seconds",
			"Duration of successful syncs, from reading the pending changes until the kernel's commit.", syncBuckets),
		full: histogramPerFamily("kubeproxy_sync_full_proxy_rules_duration_seconds",
			"Duration of syncs that read the kernel's tables first.", syncBuckets),
		partial: histogramPerFamily("kubeproxy_sync_partial_proxy_rules_duration_seconds",
			"Duration of syncs that committed changes only, without reading the tables.", syncBuckets),
		programming: histogramPerFamily("kubeproxy_network_programming_duration_seconds",
			"Time from a change of endpoints, by the control plane's clock, until the kernel's commit.", programmingBuckets),
		finer: histogramPerFamily("kube_nft_network_programming_duration_seconds",
			"kubeproxy_network_programming_duration_seconds with buckets from 1 ms.", finerBuckets),
		change: histogram("kube_nft_change_duration_seconds",
			"Time from the oldest change of a sync, as the source delivered it, until the kernel's commit. Without "+
				"the first sync."),
		last: perFamily(f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
			Help: "Time of the last successful sync, in seconds since the epoch.",
		}, []string{labelFamily}), families),
		failures: counterPerFamily("kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
			"Failed syncs, by the family that caused the failure; if unknown, both count."),
		flowDuration: histogramPerFamily("kubeproxy_conntrack_reconciler_sync_duration_seconds",
			"Time to find and delete stale conntrack entries.", syncBuckets),
		deleted: counterPerFamily("kubeproxy_conntrack_reconciler_deleted_entries_total",
			"Stale conntrack entries that kube-nft deleted after commits."),
		flowLag: histogram("kube_nft_stale_connections_lag_seconds",
			"Time from the oldest commit that made conntrack entries stale until kube-nft had deleted them. A "+
				"failed attempt counts with the time until then."),
		compile: histogram("kube_nft_compile_duration_seconds", "Time from reading the pending changes to the "+
			"complete batch."),
		commit: histogram("kube_nft_commit_duration_seconds", "Time that the kernel took to commit the batches "+
			"of a sync."),
		batches:  counter("kube_nft_batches_total", "Batches sent to the kernel."),
		messages: counter("kube_nft_batch_messages_total", "Netlink messages in all batches sent to the kernel."),
		bytes:    counter("kube_nft_batch_bytes_total", "Bytes of all batches sent to the kernel."),
		retries:  counter("kube_nft_sync_retries_total", "Failed syncs that kube-nft retries."),
		repairs: counter("kube_nft_repairs_total",
			"Repairs: syncs that undid changes by another program in the tables of kube-nft. A "+
				"Service that changes at the same moment can count as one."),
		reviews: counter("kube_nft_reviews_total",
			"Syncs that compared the tables with the wanted ones, because another program may have changed them."),
	}
}

// Failed counts a sync that failed.
func (m *Metrics) Failed(err error) {
	m.sync.retries.Inc()
	families := m.families
	if op, ok := errors.AsType[*kernel.OpError](err); ok {
		families = []tracker.Family{op.Family}
	}
	for _, family := range families {
		m.sync.failures.WithLabelValues(family.String()).Inc()
	}
}

// Cleaned counts a removal of stale connections. It may be called at any time, from any
// goroutine.
func (m *Metrics) Cleaned(r proxysync.FlowReport) {
	m.sync.flowLag.Observe(r.Lag.Seconds())
	for _, family := range m.families {
		name := family.String()
		m.sync.flowDuration.WithLabelValues(name).Observe(r.Duration.Seconds())
		m.sync.deleted.WithLabelValues(name).Add(float64(r.Deleted[family]))
	}
}

// Committed counts a successful sync. lengths is the result of services.Ruleset.Lengths, sent the
// result of kernel.Client.Sent after the sync.
func (m *Metrics) Committed(r *proxysync.Report, lengths map[nft.Family]map[string]int, sent kernel.Traffic) {
	m.sync.observe(m.families, r, sent)
	m.objects.observe(r, lengths)
}

func (s *syncMetrics) observe(families []tracker.Family, r *proxysync.Report, sent kernel.Traffic) {
	now, kind := time.Now(), s.partial
	if r.Full {
		kind = s.full
	}
	for _, family := range families {
		name, seconds := family.String(), (r.Compile + r.Commit).Seconds()
		s.duration.WithLabelValues(name).Observe(seconds)
		kind.WithLabelValues(name).Observe(seconds)
		s.last.WithLabelValues(name).SetToCurrentTime()
	}
	for _, trigger := range r.Delta.Triggers {
		// The control plane's clock may be ahead of ours; a sum of durations must not shrink.
		family, seconds := trigger.Family.String(), max(0, now.Sub(trigger.At)).Seconds()
		s.programming.WithLabelValues(family).Observe(seconds)
		s.finer.WithLabelValues(family).Observe(seconds)
	}
	if oldest := r.Delta.Oldest; s.synced && !oldest.IsZero() {
		s.change.Observe(max(0, now.Sub(oldest)).Seconds())
	}
	s.synced = true
	s.compile.Observe(r.Compile.Seconds())
	if r.Operations > 0 {
		s.commit.Observe(r.Commit.Seconds())
	}
	if r.ReviewReason != "" {
		s.reviews.Inc()
		if r.Operations > 0 {
			s.repairs.Inc()
		}
	}
	s.batches.Add(float64(sent.Batches - s.sent.Batches))
	s.messages.Add(float64(sent.Messages - s.sent.Messages))
	s.bytes.Add(float64(sent.Bytes - s.sent.Bytes))
	s.sent = sent
}
