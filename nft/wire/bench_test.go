package wire

import (
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/nft/nfttest"
)

func BenchmarkEncode(b *testing.B) {
	batch := nfttest.EndpointBatch(slices.Repeat([]int{10}, 30000)...)
	b.ReportAllocs()
	n, bytes := 0, 0
	for b.Loop() {
		var x Encoding
		if err := x.Encode(&batch, Ours, 1); err != nil {
			b.Fatal(err)
		}
		n, bytes = n+330000, len(x.Buf)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/element")
	b.ReportMetric(float64(bytes)/330000, "bytes/element")
}
