package bench

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/nft/wire"
	"github.com/kube-nft/kube-nft/tracker"
)

// BenchmarkEndpointChange is one endpoint that leaves a Service and comes back, from the
// EndpointSlice to the kernel's commit: all of it, our part up to the encoded batch, and the
// stages of that.
func BenchmarkEndpointChange(b *testing.B) {
	for _, n := range []int{1000, 10_000, 30_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) { benchmarkChange(b, n) })
	}
}

// trackerConfig lets a namespace change as often as it likes: benchmarks measure a change, not the wait for it.
var trackerConfig = tracker.Config{NodeName: "node-a", CPUTime: func() time.Duration { return 0 }}

// benchmarkChange changes one of n Services.
func benchmarkChange(b *testing.B, n int) {
	lab.New(b)
	tr := tracker.New(trackerConfig)
	for i := range n {
		if err := tr.SetService(benchService(i)); err != nil {
			b.Fatal(err)
		}
		if err := tr.SetSlice(benchSlice(i, 10)); err != nil {
			b.Fatal(err)
		}
	}
	ruleset := services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}})
	client := lab.Open(b, kernel.Open)
	ctx := context.Background()
	ruleset.Apply(tr.Take())
	if err := client.Commit(ctx, change.Diff(nft.Tables{}, ruleset.Want())); err != nil {
		b.Fatal(err)
	}
	ruleset.Committed()
	const some = 500
	var slices [some][2]*discoveryv1.EndpointSlice
	for i := range slices {
		slices[i] = [2]*discoveryv1.EndpointSlice{benchSlice(i*(n/some), 9), benchSlice(i*(n/some), 10)}
	}
	change := func(b *testing.B, i int) nft.Batch {
		if err := tr.SetSlice(slices[i/2%some][i%2]); err != nil {
			b.Fatal(err)
		}
		ruleset.Apply(tr.Take())
		batch := ruleset.Changes()
		if len(batch.Ops) != 1 {
			b.Fatalf("%d operations", len(batch.Ops))
		}
		return batch
	}
	b.Run("track", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; i < b.N*2; i++ {
			if err := tr.SetSlice(slices[i/2%some][i%2]); err != nil {
				b.Fatal(err)
			}
			tr.Take()
		}
	})
	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; i < b.N*2; i++ {
			batch := change(b, i)
			if err := new(wire.Encoding).Encode(&batch, wire.Ours, 1); err != nil {
				b.Fatal(err)
			}
			ruleset.Committed()
		}
	})
	b.Run("committed", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; i < b.N*2; i++ {
			if err := client.Commit(ctx, change(b, i)); err != nil {
				b.Fatal(err)
			}
			ruleset.Committed()
		}
	})
}

func benchService(i int) *corev1.Service {
	return lab.Service("bench", fmt.Sprintf("service-%d", i), lab.After(netip.MustParseAddr("10.96.0.0"), i))
}

func benchSlice(i, endpoints int) *discoveryv1.EndpointSlice {
	return lab.Slice("bench", fmt.Sprintf("service-%d", i), 0, corev1.IPv4Protocol,
		lab.Addresses(lab.After(firstPod, 10*i), endpoints))
}

// firstPod is the first of the pods' addresses.
var firstPod = netip.MustParseAddr("10.128.0.0")

// BenchmarkLargeService is one endpoint that leaves a Service of many slices and comes back.
func BenchmarkLargeService(b *testing.B) {
	for _, endpoints := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			tr, ruleset := tracker.New(trackerConfig),
				services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}})
			if err := tr.SetService(benchService(0)); err != nil {
				b.Fatal(err)
			}
			for part := range endpoints / 100 {
				if err := tr.SetSlice(benchPart(part, 100)); err != nil {
					b.Fatal(err)
				}
			}
			ruleset.Apply(tr.Take())
			ruleset.Committed()
			few, all := benchPart(7, 99), benchPart(7, 100)
			b.ReportAllocs()
			for b.Loop() {
				for _, slice := range []*discoveryv1.EndpointSlice{few, all} {
					if err := tr.SetSlice(slice); err != nil {
						b.Fatal(err)
					}
					ruleset.Apply(tr.Take())
					batch := ruleset.Changes()
					if err := new(wire.Encoding).Encode(&batch, wire.Ours, 1); err != nil || len(batch.Ops) == 0 {
						b.Fatal(len(batch.Ops), err)
					}
					ruleset.Committed()
				}
			}
		})
	}
}

// benchPart is one slice of many of a Service, whose addresses lie between other slices'.
func benchPart(part, endpoints int) *discoveryv1.EndpointSlice {
	s := benchSlice(0, endpoints)
	s.Name = fmt.Sprintf("service-0-%d", part)
	for e := range s.Endpoints {
		s.Endpoints[e].Addresses = []string{lab.After(firstPod, 1000*e+part).String()}
	}
	return s
}
