package kernel

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/nfttest"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// TestCommitOfAllAtOnce commits 330,000 elements in one system call. That takes a send
// buffer that only root of the initial user namespace can have.
func TestCommitOfAllAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	lab.New(t)
	k := lab.Open(t, Open)
	b := nfttest.EndpointBatch(slices.Repeat([]int{10}, 30000)...)
	err := k.Commit(t.Context(), b)
	if isTooLong(err) {
		lab.SkipOrFail(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range b.Ops {
		if op.Elements == nil {
			continue
		}
		got := tables[nft.IP].Sets[op.Set.Name]
		if len(got.Map) != len(op.Elements) || !got.Set.Equal(op.Set) {
			t.Errorf("%s: read %d elements, want %d", op.Set.Name, len(got.Map), len(op.Elements))
		}
		for _, want := range op.Elements {
			if !got.Map[want.Key].Equal(want.Element) {
				t.Fatalf("%s: got %+v, want %+v", got.ElementText(nft.IP, want.Key), got.Map[want.Key], want.Element)
			}
		}
	}
}

func isTooLong(err error) bool {
	e, ok := err.(*BatchError)
	return ok && e.Err == unix.EMSGSIZE
}

// BenchmarkCommit tells the kernel's share (raw) of a commit from ours, and reads it back.
func BenchmarkCommit(b *testing.B) {
	lab.New(b)
	k := lab.Open(b, Open)
	batch := nfttest.EndpointBatch(slices.Repeat([]int{10}, 30000)...)
	var raw, read, elements time.Duration
	for b.Loop() {
		raw += rawCommit(b, k, &batch)
		start := time.Now()
		if _, _, err := k.Read(b.Context()); err != nil {
			b.Fatal(err)
		}
		read += time.Since(start)
		start = time.Now()
		if _, err := k.Elements(b.Context(), nft.IP, &nfttest.EndpointSet); err != nil {
			b.Fatal(err)
		}
		elements += time.Since(start)
		commit(b, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Delete, Family: nft.IP, Table: nft.NewTable(nft.IP)}}})
	}
	b.ReportMetric(raw.Seconds()/float64(b.N), "raw-s/op")
	b.ReportMetric(read.Seconds()/float64(b.N), "read-s/op")
	b.ReportMetric(elements.Seconds()/float64(b.N), "elements-s/op")
}

// rawCommit sends the bytes of a batch that were encoded before, and returns how long the
// kernel took.
func rawCommit(b *testing.B, k *Client, batch *nft.Batch) time.Duration {
	b.Helper()
	var x wire.Encoding
	if err := x.Encode(batch, wire.Ours, k.seq); err != nil {
		b.Fatal(err)
	}
	k.seq += uint32(x.Messages()) + 2
	if err := k.reserve(len(x.Buf)); err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	if err := k.socket.send(x.Buf); err != nil {
		b.Fatal(err)
	}
	if err := k.outcome(&x, batch); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}
