package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// lists is what Read needs to know about the tables of an EndpointBatch.
var lists = map[string]nft.ListKeys{nfttest.EndpointSet.Name: {Map: nfttest.FrontendSet.Name}}

// commitLists commits a table with a list of each length.
func commitLists(tb testing.TB, lengths ...int) (*Client, *nft.Table) {
	tb.Helper()
	lab.New(tb)
	k := lab.Open(tb, Open)
	k.Lists = lists
	b := nfttest.EndpointBatch(lengths...)
	commit(tb, k, b)
	return k, nfttest.TableOf(b)
}

// readLists reads the lists of a table by their keys.
func readLists(ctx context.Context, k *Client, t *nft.Table) (map[string]nft.Element, error) {
	keys, err := k.listKeys(ctx, t, &nfttest.EndpointSet)
	if err != nil {
		return nil, err
	}
	return k.readLists(ctx, t, &nfttest.EndpointSet, keys)
}

// TestListsAreReadByKey reads lists of many lengths.
func TestListsAreReadByKey(t *testing.T) {
	k, table := commitLists(t, append(slices.Repeat([]int{16}, 500), 1, 15, 16, 17, 79, 80, 81, 700)...)
	fresh := lab.Open(t, Open) // whose send buffer is as a small commit leaves it
	fresh.Lists = lists
	if err := fresh.reserve(1); err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]*Client{"used": k, "fresh": fresh} {
		got, err := readLists(t.Context(), k, table)
		if err != nil {
			t.Fatal(err)
		}
		checkElements(t, name, got, table)
	}
}

// checkElements compares the endpoints that were read with those that were written.
func checkElements(t *testing.T, name string, got map[string]nft.Element, table *nft.Table) {
	t.Helper()
	want := table.Sets[nfttest.EndpointSet.Name].Map
	if !maps.EqualFunc(got, want, nft.Element.Equal) {
		t.Errorf("%s: read %d elements that differ from the %d that were written", name, len(got), len(want))
	}
}

// TestListsOfChainsAreReadByKey reads a map whose lists have numbers, which chains name.
func TestListsOfChainsAreReadByKey(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	set := &nft.Set{Name: "lists", Key: []nft.Field{nft.FieldIndex, nft.FieldIndex}, Data: []nft.Field{nft.FieldAddr, nft.FieldPort}}
	k.Lists = map[string]nft.ListKeys{"lists": {OfChain: func(name string) (string, bool) {
		number, ok := strings.CutPrefix(name, "list-")
		n, err := strconv.ParseUint(number, 10, 32)
		return string(nft.AppendNumber(nil, uint32(n))), ok && err == nil
	}}}
	ops := []nft.Op{
		{Verb: nft.Add, Family: nft.IP, Table: nft.NewTable(nft.IP)}, {Verb: nft.Add, Family: nft.IP, Set: set},
		{Verb: nft.Add, Family: nft.IP, Chain: &nft.Chain{Name: "other"}},
	}
	want := make(map[string]nft.Element)
	var elements []nft.KeyedElement
	for number := range uint32(20) {
		ops = append(ops, nft.Op{Verb: nft.Add, Family: nft.IP, Chain: &nft.Chain{Name: fmt.Sprint("list-", number)}})
		for index := range number * 5 {
			key := nft.IndexedKey(string(nft.AppendNumber(nil, number)), int(index))
			want[key] = nft.Element{Data: nft.AddrPortData(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(number), byte(index)}), 80))}
			elements = append(elements, nft.KeyedElement{Key: key, Element: want[key]})
		}
	}
	commit(t, k, nft.Batch{Ops: append(ops, nft.Op{Verb: nft.Add, Family: nft.IP, Set: set, Elements: elements})})
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := k.listKeys(t.Context(), tables[nft.IP], set)
	if err != nil || len(keys) != 20 {
		t.Fatalf("%d lists and %v, want 20", len(keys), err)
	}
	got, err := k.readLists(t.Context(), tables[nft.IP], set, keys)
	if err != nil || !maps.EqualFunc(got, want, nft.Element.Equal) {
		t.Errorf("read %d elements that differ from the %d that were written; %v", len(got), len(want), err)
	}
	large := &nft.Elements{Set: set}
	if err := k.fillLarge(t.Context(), tables[nft.IP], large, uint32(len(want))); err != nil || len(large.Map) != len(want) {
		t.Errorf("as a large map: %d elements and %v", len(large.Map), err)
	}
}

// TestLargeMapsAreReadWhole reads a map back that holds an element of no frontend.
func TestLargeMapsAreReadWhole(t *testing.T) {
	k, table := commitLists(t, slices.Repeat([]int{10}, 200)...)
	key := nft.IndexedKey("\x0a\x60\x01\xfa\x06\x00\x00\x00\x00\x01\x00\x00", 3)
	foreign := nft.KeyedElement{Key: key, Element: nft.Element{Data: nft.AddrPortData(netip.MustParseAddrPort("10.128.0.1:8080"))}}
	commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Set: &nfttest.EndpointSet, Elements: []nft.KeyedElement{foreign}}}})
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := &nft.Elements{Set: &nfttest.EndpointSet}
	if err := k.fillLarge(t.Context(), tables[nft.IP], got, 2001); err != nil {
		t.Fatal(err)
	}
	if !got.Map[key].Equal(foreign.Element) {
		t.Errorf("the element of no frontend: read %+v", got.Map[key])
	}
	delete(got.Map, key)
	checkElements(t, "the others", got.Map, table)
}

// TestLargeMapsAreReadIntoASmallBuffer has no room for the answers about many lists.
func TestLargeMapsAreReadIntoASmallBuffer(t *testing.T) {
	k, table := commitLists(t, slices.Repeat([]int{10}, 200)...)
	if err := k.socket.setBuffer(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := readLists(t.Context(), k, table); !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("reading by keys: %v, want ENOBUFS", err)
	}
	k.discard()
	got := &nft.Elements{Set: &nfttest.EndpointSet}
	if err := k.fillLarge(t.Context(), table, got, 2000); err != nil {
		t.Fatal(err)
	}
	checkElements(t, "by a dump", got.Map, table)
	if _, err := k.Generation(t.Context()); err != nil {
		t.Errorf("the next question: %v", err)
	}
}

// BenchmarkReadLists compares both ways to read a large map, by the CPU time of the thread.
func BenchmarkReadLists(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{1000, 10}, {10000, 10}, {30000, 10}, {5000, 50}} {
		b.Run(fmt.Sprintf("services=%d/endpoints=%d", size.services, size.endpoints), func(b *testing.B) {
			k, table := commitLists(b, slices.Repeat([]int{size.endpoints}, size.services)...)
			var dump, keys time.Duration
			for b.Loop() {
				start := threadTime(b)
				if _, err := k.readElements(b.Context(), nft.IP, &nfttest.EndpointSet); err != nil && err != unix.EINTR {
					b.Fatal(err)
				}
				dump += threadTime(b) - start
				start = threadTime(b)
				if _, err := readLists(b.Context(), k, table); err != nil {
					b.Fatal(err)
				}
				keys += threadTime(b) - start
			}
			b.ReportMetric(dump.Seconds()/float64(b.N), "dump-s/op")
			b.ReportMetric(keys.Seconds()/float64(b.N), "keys-s/op")
		})
	}
}

// threadTime is the CPU time that the calling thread has used.
func threadTime(tb testing.TB) time.Duration {
	tb.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &usage); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
