package metrics

import (
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nft/kube-nft/nft"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

// syncMetrics are about the sync loop. One sync brings all families up to date: what has a
// family as its label is counted for each.
type syncMetrics struct {
	duration, full, partial *prometheus.HistogramVec
	programming             *prometheus.HistogramVec
	last, queued            *prometheus.GaugeVec
	failures                *prometheus.CounterVec

	compile, commit           prometheus.Histogram
	batches, messages, bytes  prometheus.Counter
	retries, repairs, reviews prometheus.Counter
	sent                      nft.Traffic // of the last call of Committed
}

// syncBuckets and programmingBuckets are kube-proxy's, commitBuckets ours: from 0.1 ms,
// what a commit of one endpoint takes, to 26 s, doubling.
var (
	syncBuckets        = prometheus.ExponentialBuckets(0.001, 2, 15)
	commitBuckets      = prometheus.ExponentialBuckets(0.0001, 2, 19)
	programmingBuckets = slices.Concat(
		prometheus.LinearBuckets(0.25, 0.25, 2),
		prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12),
		prometheus.LinearBuckets(120, 30, 7),
	)
)

func newSyncMetrics(families []tracker.Family) *syncMetrics {
	return &syncMetrics{
		duration: histogramPerFamily("kubeproxy_sync_proxy_rules_duration_seconds",
			"Duration of syncs that succeeded, from taking the changes until stale connections were removed.", syncBuckets, families),
		full: histogramPerFamily("kubeproxy_sync_full_proxy_rules_duration_seconds",
			"Duration of syncs that read the kernel's tables first.", syncBuckets, families),
		partial: histogramPerFamily("kubeproxy_sync_partial_proxy_rules_duration_seconds",
			"Duration of syncs that committed only what had changed.", syncBuckets, families),
		programming: histogramPerFamily("kubeproxy_network_programming_duration_seconds",
			"Time from a change of endpoints, as the control plane saw it, until the kernel had it.", programmingBuckets, families),
		last: gaugePerFamily("kubeproxy_sync_proxy_rules_last_timestamp_seconds",
			"When the last sync succeeded, in seconds since the epoch.", families),
		queued: gaugePerFamily("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
			"When the last change came that asked for a sync, in seconds since the epoch.", families),
		failures: counterPerFamily("kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
			"Syncs that failed, because of this family if that is known.", families),
		compile:  newHistogram("kube_nft_compile_duration_seconds", "Time from taking the changes to the complete batch.", commitBuckets),
		commit:   newHistogram("kube_nft_commit_duration_seconds", "Time that the kernel took to apply what a sync had for it.", commitBuckets),
		batches:  newCounter("kube_nft_batches_total", "Batches sent to the kernel."),
		messages: newCounter("kube_nft_batch_messages_total", "Netlink messages in all batches sent to the kernel."),
		bytes:    newCounter("kube_nft_batch_bytes_total", "Bytes of all batches sent to the kernel."),
		retries:  newCounter("kube_nft_sync_retries_total", "Syncs that failed and are tried again."),
		repairs:  newCounter("kube_nft_repairs_total", "Syncs that had to write because somebody else had changed the tables. A change of the cluster at the same moment counts as one, too."),
		reviews:  newCounter("kube_nft_reviews_total", "Syncs that looked at the tables because somebody else may have changed them."),
	}
}

func newHistogram(name, help string, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

func newCounter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (s *syncMetrics) register(registry *prometheus.Registry) {
	registry.MustRegister(s.duration, s.full, s.partial, s.programming, s.last, s.queued, s.failures,
		s.compile, s.commit, s.batches, s.messages, s.bytes, s.retries, s.repairs, s.reviews)
}

// Queued says that there is something to sync.
func (m *Metrics) Queued() {
	for _, family := range m.families {
		m.sync.queued.WithLabelValues(family.String()).SetToCurrentTime()
	}
}

// Failed counts a sync that failed.
func (m *Metrics) Failed(err error) {
	m.sync.retries.Inc()
	families := m.families
	var op *nft.OpError
	if errors.As(err, &op) {
		families = []tracker.Family{tracker.Family(op.Family)}
	}
	for _, family := range families {
		m.sync.failures.WithLabelValues(family.String()).Inc()
	}
}

// Committed counts a sync that succeeded. Lengths are those of nft.Ruleset.Lengths, sent is
// what nft.Kernel.Sent said after it.
func (m *Metrics) Committed(r *proxysync.Report, lengths map[nft.Family]map[string]int, sent nft.Traffic) {
	m.sync.observe(m.families, r, time.Now())
	m.sync.observeTraffic(sent)
	m.objects.observe(r, lengths)
	m.flows.observe(m.families, r)
}

func (s *syncMetrics) observe(families []tracker.Family, r *proxysync.Report, now time.Time) {
	kind := s.partial
	if r.Full {
		kind = s.full
	}
	for _, family := range families {
		name, seconds := family.String(), (r.Compile + r.Commit + r.Flows.Duration).Seconds()
		s.duration.WithLabelValues(name).Observe(seconds)
		kind.WithLabelValues(name).Observe(seconds)
		s.last.WithLabelValues(name).SetToCurrentTime()
	}
	for _, trigger := range r.Delta.Triggers {
		// The control plane's clock may be ahead of ours; a sum of durations must not shrink.
		s.programming.WithLabelValues(trigger.Family.String()).Observe(max(0, now.Sub(trigger.At)).Seconds())
	}
	s.compile.Observe(r.Compile.Seconds())
	if r.Operations > 0 {
		s.commit.Observe(r.Commit.Seconds())
	}
	if r.Distrust != "" {
		s.reviews.Inc()
		if r.Operations > 0 {
			s.repairs.Inc()
		}
	}
}

func (s *syncMetrics) observeTraffic(sent nft.Traffic) {
	s.batches.Add(float64(sent.Batches - s.sent.Batches))
	s.messages.Add(float64(sent.Messages - s.sent.Messages))
	s.bytes.Add(float64(sent.Bytes - s.sent.Bytes))
	s.sent = sent
}
