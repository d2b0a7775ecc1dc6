package metrics

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// Kernel is what a scrape needs of nf_tables. One goroutine at a time uses it; it should be a
// *kernel.Client of its own.
type Kernel interface {
	DynamicFill(ctx context.Context, f nft.Family, limit int) (map[string]kernel.Fill, error)
	Generation(context.Context) (uint32, error)
	RuleCounters(ctx context.Context, f nft.Family, chains ...string) (map[string]uint64, error)
}

const (
	// kernelTimeout bounds the requests of one scrape.
	kernelTimeout = 5 * time.Second
	// affinityLimit is how many affinity entries are read where the kernel does not count them:
	// about a tenth of a second.
	affinityLimit = 100_000
)

// A kernelCollector shows the state of nf_tables at the time of a scrape. It leaves out, and
// counts, what it cannot read.
type kernelCollector struct {
	families []tracker.Family

	mu     sync.Mutex
	kernel Kernel
	failed float64
}

var (
	generationDesc = prometheus.NewDesc("kube_nft_nftables_generation",
		"Generation of nf_tables in this network namespace: each commit of any program increments it.", nil, nil)
	affinityDesc = prometheus.NewDesc("kube_nft_affinity_entries",
		"Entries of the affinity maps: clients with session affinity.", []string{labelFamily}, nil)
	fillDesc = prometheus.NewDesc("kube_nft_affinity_fill_ratio",
		"Fill of the fullest affinity map, 0 to 1. New clients of a full map are served without affinity.",
		[]string{labelFamily}, nil)
	refusedDesc = prometheus.NewDesc("kube_nft_refused_packets_total",
		"First packets of connections to Service addresses that the rules rejected or dropped, by cause. Each "+
			"retry of a client counts.",
		[]string{labelFamily, "cause"}, nil)
	failedDesc = prometheus.NewDesc("kube_nft_scrape_failures_total",
		"Requests of scrapes to nf_tables that failed.", nil, nil)
)

func (c *kernelCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{generationDesc, affinityDesc, fillDesc, refusedDesc, failedDesc} {
		descs <- desc
	}
}

func (c *kernelCollector) Collect(metrics chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), kernelTimeout)
	defer cancel()
	if generation, err := c.kernel.Generation(ctx); err == nil {
		metrics <- prometheus.MustNewConstMetric(generationDesc, prometheus.GaugeValue, float64(generation))
	} else {
		c.failed++
	}
	for _, family := range c.families {
		usage, err := c.kernel.DynamicFill(ctx, family, affinityLimit)
		if err != nil && !errors.Is(err, unix.ENOENT) { // before the first commit there is no table
			c.failed++
			continue
		}
		entries, fill := sum(usage)
		metrics <- prometheus.MustNewConstMetric(affinityDesc, prometheus.GaugeValue, entries, family.String())
		metrics <- prometheus.MustNewConstMetric(fillDesc, prometheus.GaugeValue, fill, family.String())
		refused, err := readback.ReadRefusals(ctx, c.kernel, family)
		if err != nil {
			c.failed++
			continue
		}
		for cause, n := range refused {
			metrics <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(n), family.String(), cause)
		}
	}
	metrics <- prometheus.MustNewConstMetric(failedDesc, prometheus.CounterValue, c.failed)
}

// sum returns the number of entries of all maps, and how full the fullest is.
func sum(usage map[string]kernel.Fill) (entries, fill float64) {
	for _, u := range usage {
		entries += float64(u.Count)
		if u.Size > 0 {
			fill = max(fill, float64(u.Count)/float64(u.Size))
		}
	}
	return entries, fill
}
