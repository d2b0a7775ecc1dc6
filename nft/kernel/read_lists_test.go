package kernel

import (
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// commitLists commits a table with a frontend for each length, whose list has that length.
func commitLists(tb testing.TB, lengths ...int) (*Client, *nft.Table) {
	tb.Helper()
	lab.New(tb)
	k := lab.Open(tb, Open)
	b := nfttest.EndpointBatch(lengths...)
	commit(tb, k, b)
	return k, nfttest.TableOf(b)
}

// TestReadListsByKey reads lists whose lengths are around those of a request, with the usual receive
// buffer of a process without privileges.
func TestReadListsByKey(t *testing.T) {
	lengths := append(slices.Repeat([]int{16}, 500), 0, 1, keysPerRequest-1, keysPerRequest, keysPerRequest+1,
		2*keysPerRequest, 700)
	k, table := commitLists(t, lengths...)
	if err := unix.SetsockoptInt(k.socket.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 212992/2); err != nil {
		t.Fatal(err)
	}
	frontends := frontendsOf(table, &nfttest.EndpointSet)
	if frontends == nil || frontends.Set != &nfttest.FrontendSet {
		t.Fatalf("the frontends are read from %v", frontends)
	}
	got, err := k.readLists(t.Context(), nft.IP, &nfttest.EndpointSet, frontends.Map)
	if err != nil {
		t.Fatal(err)
	}
	if want := table.Sets[nfttest.EndpointSet.Name].Map; !maps.EqualFunc(got, want, nft.Element.Equal) {
		t.Errorf("read %d elements that differ from the %d that were written", len(got), len(want))
	}
}

// TestReadLargeMapWithForeignElement reads a large map in which an element belongs to no frontend.
func TestReadLargeMapWithForeignElement(t *testing.T) {
	if testing.Short() {
		t.Skip("commits many elements")
	}
	k, table := commitLists(t, slices.Repeat([]int{10}, manyElements/10)...)
	key := nft.IndexedKey("\x0a\x60\x01\xfa\x06\x00\x00\x00\x00\x01\x00\x00", 3)
	foreign := nft.KeyedElement{Key: key, Element: nft.Element{
		Data: nfttest.AddrPortData(netip.MustParseAddrPort("10.128.0.1:8080"))}}
	want := table.Sets[nfttest.EndpointSet.Name].Map
	for _, more := range [][]nft.KeyedElement{nil, {foreign}} {
		if more != nil {
			commit(t, k, nft.Batch{Ops: []nft.Op{
				{Verb: nft.Add, Family: nft.IP, Set: &nfttest.EndpointSet, Elements: more}}})
			want[key] = foreign.Element
		}
		tables, _, err := k.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := tables[nft.IP].Sets[nfttest.EndpointSet.Name].Map; !maps.EqualFunc(got, want, nft.Element.Equal) {
			t.Errorf("%d foreign elements: read %d elements that differ from the %d that were written",
				len(more), len(got), len(want))
		}
	}
}

// BenchmarkReadLists compares both ways to read a large map, by the CPU time of the thread.
func BenchmarkReadLists(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{1000, 10}, {10000, 10}, {30000, 10}, {100000, 10}} {
		b.Run(fmt.Sprintf("services=%d/endpoints=%d", size.services, size.endpoints), func(b *testing.B) {
			k, table := commitLists(b, slices.Repeat([]int{size.endpoints}, size.services)...)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var dump, keys time.Duration
			for b.Loop() {
				start := threadTime(b)
				if _, err := k.Elements(b.Context(), nft.IP, &nfttest.EndpointSet); err != nil {
					b.Fatal(err)
				}
				dump += threadTime(b) - start
				start = threadTime(b)
				frontends := table.Sets[nfttest.FrontendSet.Name].Map
				if _, err := k.readLists(b.Context(), nft.IP, &nfttest.EndpointSet, frontends); err != nil {
					b.Fatal(err)
				}
				keys += threadTime(b) - start
			}
			b.ReportMetric(dump.Seconds()/float64(b.N), "dump-cpu-s/op")
			b.ReportMetric(keys.Seconds()/float64(b.N), "keys-cpu-s/op")
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
