package nft

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

// large is a committed ruleset of services Service ports.
func large(tb testing.TB, services, endpoints int) (*Kernel, *Ruleset) {
	tb.Helper()
	lab.New(tb)
	k := openKernel(tb)
	r := NewRuleset(testConfig())
	r.Apply(cluster(services, endpoints))
	commit(tb, k, Diff(Tables{}, r.Want()))
	r.Committed()
	return k, r
}

// TestListsAreReadByKey reads lists of many lengths in both ways.
func TestListsAreReadByKey(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	r := NewRuleset(testConfig())
	delta := cluster(500, 16)
	for i, n := range []int{1, 15, 16, 17, 79, 80, 81, 700} {
		p := clusterPort(10000+i, n)
		delta.Changed[p.ID] = p
	}
	r.Apply(delta)
	commit(t, k, Diff(Tables{}, r.Want()))
	want := r.Want()[IP]
	fresh := openKernel(t) // whose send buffer is as a small commit leaves it
	if err := fresh.reserve(1); err != nil {
		t.Fatal(err)
	}
	got, err := fresh.readLists(t.Context(), want, want.Sets[endpointsMap].Set, want.Sets[servicesMap].Map)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(got, want.Sets[endpointsMap].Map, Element.Equal) {
		t.Errorf("read %d elements that differ from the %d that were written", len(got), len(want.Sets[endpointsMap].Map))
	}
}

// TestLargeMapsAreReadWhole reads a map back that holds an element of no frontend.
func TestLargeMapsAreReadWhole(t *testing.T) {
	k, r := large(t, 200, 10)
	key := indexedKey(frontendKey(address(tracker.IPv4, 96, 250), 6, 1), 3)
	foreign := KeyedElement{Key: key, Element: Element{Data: endpointData(clusterPort(1, 1).Cluster[0])}}
	set := r.Want()[IP].Sets[endpointsMap].Set
	commit(t, k, Batch{Ops: []Op{{Verb: Add, Family: IP, Set: set, Elements: []KeyedElement{foreign}}}})
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := &Elements{Set: set}
	if err := k.fillLarge(t.Context(), tables[IP], got, 2001); err != nil {
		t.Fatal(err)
	}
	if len(got.Map) != 2001 || !got.Map[key].Equal(foreign.Element) {
		t.Errorf("read %d elements, want 2001 with one of no frontend: %+v", len(got.Map), got.Map[key])
	}
}

// TestLargeMapsAreReadIntoASmallBuffer has no room for the answers about many lists.
func TestLargeMapsAreReadIntoASmallBuffer(t *testing.T) {
	k, r := large(t, 200, 10)
	want := r.Want()[IP]
	set := want.Sets[endpointsMap].Set
	if err := k.socket.setBuffer(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := k.readLists(t.Context(), want, set, want.Sets[servicesMap].Map); !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("reading by keys: %v, want ENOBUFS", err)
	}
	k.discard()
	got := &Elements{Set: set}
	if err := k.fillLarge(t.Context(), want, got, 2000); err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(got.Map, want.Sets[endpointsMap].Map, Element.Equal) {
		t.Errorf("read %d elements that differ from the 2000 that were written", len(got.Map))
	}
	if _, err := k.Generation(t.Context()); err != nil {
		t.Errorf("the next question: %v", err)
	}
}

// BenchmarkReadLists compares both ways to read a large map, by the CPU time of the thread.
func BenchmarkReadLists(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("services=%d/endpoints=%d", size.services, size.endpoints), func(b *testing.B) {
			k, r := large(b, size.services, size.endpoints)
			table := r.Want()[IP]
			set := table.Sets[endpointsMap].Set
			var dump, keys time.Duration
			for b.Loop() {
				start := threadTime(b)
				if _, err := k.readElements(b.Context(), IP, set); err != nil && err != unix.EINTR {
					b.Fatal(err)
				}
				dump += threadTime(b) - start
				start = threadTime(b)
				if _, err := k.readLists(b.Context(), table, set, table.Sets[servicesMap].Map); err != nil {
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
