package kernel

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

var endpointSet = nft.Set{Name: "endpoints", Key: []nft.Field{nft.FieldAddr, nft.FieldProtocol, nft.FieldPort, nft.FieldIndex}, Data: []nft.Field{nft.FieldAddr, nft.FieldPort}}

// endpointBatch makes a map of services times per endpoints, and a verdict for each service.
func endpointBatch(services, per int) nft.Batch {
	b := kernel.frontendBatch(services, nft.Goto("other"))
	var list []nft.KeyedElement
	for _, frontend := range b.Ops[3].Elements {
		for i := range per {
			data := binary.BigEndian.AppendUint32(nil, 172<<24+uint32(len(list)))
			list = append(list, nft.KeyedElement{Key: nft.IndexedKey(frontend.Key, i), Element: nft.Element{Data: string(append(data, 0x1f, 0x90, 0, 0))}})
		}
	}
	b.Ops = append(b.Ops,
		nft.Op{Verb: nft.Add, Family: nft.IP, Set: &endpointSet},
		nft.Op{Verb: nft.Add, Family: nft.IP, Set: &endpointSet, Elements: list})
	return b
}

// TestCommitOfAllAtOnce commits 330,000 elements in one system call. That takes a send
// buffer that only root of the initial user namespace can have.
func TestCommitOfAllAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	lab.New(t)
	k := kernel.openKernel(t)
	b := endpointBatch(30000, 10)
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
				t.Fatalf("%s: got %+v, want %+v", op.Set.KeyText(nft.IP, want.Key), got.Map[want.Key], want.Element)
			}
		}
	}
}

func isTooLong(err error) bool {
	e, ok := err.(*kernel.BatchError)
	return ok && e.Err == unix.EMSGSIZE
}

func BenchmarkEncode(b *testing.B) {
	batch := endpointBatch(30000, 10)
	b.ReportAllocs()
	n, bytes := 0, 0
	for b.Loop() {
		x, err := kernel.encodeBatch(&batch, kernel.scope{table: nft.TableName}, 1)
		if err != nil {
			b.Fatal(err)
		}
		n, bytes = n+330000, len(x.buf)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/element")
	b.ReportMetric(float64(bytes)/330000, "bytes/element")
}

// BenchmarkCommit tells the kernel's share (raw) of a commit from ours, and reads it back.
func BenchmarkCommit(b *testing.B) {
	lab.New(b)
	k := kernel.openKernel(b)
	batch := endpointBatch(30000, 10)
	var raw, read, elements time.Duration
	for b.Loop() {
		raw += rawCommit(b, k, &batch)
		start := time.Now()
		if _, _, err := k.Read(b.Context()); err != nil {
			b.Fatal(err)
		}
		read += time.Since(start)
		start = time.Now()
		if _, err := k.Elements(b.Context(), nft.IP, &endpointSet); err != nil {
			b.Fatal(err)
		}
		elements += time.Since(start)
		kernel.commit(b, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Delete, Family: nft.IP, Table: nft.NewTable(nft.IP)}}})
	}
	b.ReportMetric(raw.Seconds()/float64(b.N), "raw-s/op")
	b.ReportMetric(read.Seconds()/float64(b.N), "read-s/op")
	b.ReportMetric(elements.Seconds()/float64(b.N), "elements-s/op")
}

func BenchmarkText(b *testing.B) {
	batch := endpointBatch(10000, 10)
	t := nft.NewTable(nft.IP)
	for _, op := range batch.Ops {
		if op.Elements == nil {
			continue
		}
		t.Sets[op.Set.Name] = &nft.Elements{Set: op.Set, Map: map[string]nft.Element{}}
		for _, el := range op.Elements {
			t.Sets[op.Set.Name].Map[el.Key] = el.Element
		}
	}
	tables := nft.Tables{nft.IP: t}
	for b.Loop() {
		_ = tables.Text()
	}
}
