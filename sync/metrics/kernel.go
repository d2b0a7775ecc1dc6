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
	RuleCounter(ctx context.Context, f nft.Family, chain string) (packets uint64, ok bool, err error)
}

const (
	// kernelTimeout bounds the requests of one scrape.
	kernelTimeout = 5 * time.Second
	// affinityLimit is how many affinity entries are read where the kernel does not count them:
	// about a tenth of a second.
	affinityLimit = 100_000
)

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

// newKernelCollector shows the state of nf_tables. It leaves out, and counts, what it cannot read.
// asks guards k, and what the collector keeps.
func newKernelCollector(k Kernel, families []tracker.Family, asks *sync.Mutex) *collector {
	failed := 0.0
	return &collector{[]*prometheus.Desc{generationDesc, affinityDesc, fillDesc, refusedDesc, failedDesc},
		func(metrics chan<- prometheus.Metric) {
			asks.Lock()
			defer asks.Unlock()
			ctx, cancel := context.WithTimeout(context.Background(), kernelTimeout)
			defer cancel()
			if generation, err := k.Generation(ctx); err == nil {
				metrics <- gauge(generationDesc, float64(generation))
			} else {
				failed++
			}
			for _, family := range families {
				if collectFamily(ctx, k, family, metrics) != nil {
					failed++
				}
			}
			metrics <- counter(failedDesc, failed)
		}}
}

func collectFamily(ctx context.Context, k Kernel, family tracker.Family, metrics chan<- prometheus.Metric) error {
	usage, err := k.DynamicFill(ctx, family, affinityLimit)
	if err != nil && !errors.Is(err, unix.ENOENT) { // before the first commit there is no table
		return err
	}
	entries, fill := 0.0, 0.0 // of all maps, and of the fullest
	for _, u := range usage {
		entries += float64(u.Count)
		if u.Size > 0 {
			fill = max(fill, float64(u.Count)/float64(u.Size))
		}
	}
	metrics <- gauge(affinityDesc, entries, family.String())
	metrics <- gauge(fillDesc, fill, family.String())
	refused, err := readback.ReadRefusals(ctx, k, family)
	for cause, n := range refused {
		metrics <- counter(refusedDesc, float64(n), family.String(), cause)
	}
	return err
}
