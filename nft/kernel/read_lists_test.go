package kernel

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// large is a committed ruleset of services Service ports.
func large(tb testing.TB, services, endpoints int) (*Client, *services.Ruleset) {
	tb.Helper()
	lab.New(tb)
	k := openKernel(tb)
	r := services.NewRuleset(services.testConfig())
	r.Apply(services.cluster(services, endpoints))
	commit(tb, k, nft.Diff(nft.Tables{}, r.Want()))
	r.Committed()
	return k, r
}

// TestListsAreReadByKey reads lists of many lengths in both ways.
func TestListsAreReadByKey(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	r := services.NewRuleset(services.testConfig())
	delta := services.cluster(500, 16)
	for i, n := range []int{1, 15, 16, 17, 79, 80, 81, 700} {
		p := services.clusterPort(10000+i, n)
		delta.Changed[p.ID] = p
	}
	r.Apply(delta)
	commit(t, k, nft.Diff(nft.Tables{}, r.Want()))
	want := r.Want()[nft.IP]
	fresh := openKernel(t) // whose send buffer is as a small commit leaves it
	if err := fresh.reserve(1); err != nil {
		t.Fatal(err)
	}
	got, err := fresh.readLists(t.Context(), want, want.Sets[services.endpointsMap].Set, want.Sets[services.servicesMap].Map)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(got, want.Sets[services.endpointsMap].Map, nft.Element.Equal) {
		t.Errorf("read %d elements that differ from the %d that were written", len(got), len(want.Sets[services.endpointsMap].Map))
	}
}

// TestLargeMapsAreReadWhole reads a map back that holds an element of no frontend.
func TestLargeMapsAreReadWhole(t *testing.T) {
	k, r := large(t, 200, 10)
	key := nft.IndexedKey(services.frontendKey(services.address(tracker.IPv4, 96, 250), 6, 1), 3)
	foreign := nft.KeyedElement{Key: key, Element: nft.Element{Data: nft.AddrPortData(services.clusterPort(1, 1).Cluster[0])}}
	set := r.Want()[nft.IP].Sets[services.endpointsMap].Set
	commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Set: set, Elements: []nft.KeyedElement{foreign}}}})
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := &nft.Elements{Set: set}
	if err := k.fillLarge(t.Context(), tables[nft.IP], got, 2001); err != nil {
		t.Fatal(err)
	}
	if len(got.Map) != 2001 || !got.Map[key].Equal(foreign.Element) {
		t.Errorf("read %d elements, want 2001 with one of no frontend: %+v", len(got.Map), got.Map[key])
	}
}

// TestLargeMapsAreReadIntoASmallBuffer has no room for the answers about many lists.
func TestLargeMapsAreReadIntoASmallBuffer(t *testing.T) {
	k, r := large(t, 200, 10)
	want := r.Want()[nft.IP]
	set := want.Sets[services.endpointsMap].Set
	if err := k.socket.setBuffer(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := k.readLists(t.Context(), want, set, want.Sets[services.servicesMap].Map); !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("reading by keys: %v, want ENOBUFS", err)
	}
	k.discard()
	got := &nft.Elements{Set: set}
	if err := k.fillLarge(t.Context(), want, got, 2000); err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(got.Map, want.Sets[services.endpointsMap].Map, nft.Element.Equal) {
		t.Errorf("read %d elements that differ from the 2000 that were written", len(got.Map))
	}
	if _, err := k.Generation(t.Context()); err != nil {
		t.Errorf("the next question: %v", err)
	}
}

// BenchmarkReadLists compares both ways to read a large map, by the CPU time of the thread.
func BenchmarkReadLists(b *testing.B) {
	for _, size := range services.benchSizes {
		b.Run(fmt.Sprintf("services=%d/endpoints=%d", size.services, size.endpoints), func(b *testing.B) {
			k, r := large(b, size.services, size.endpoints)
			table := r.Want()[nft.IP]
			set := table.Sets[services.endpointsMap].Set
			var dump, keys time.Duration
			for b.Loop() {
				start := threadTime(b)
				if _, err := k.readElements(b.Context(), nft.IP, set); err != nil && err != unix.EINTR {
					b.Fatal(err)
				}
				dump += threadTime(b) - start
				start = threadTime(b)
				if _, err := k.readLists(b.Context(), table, set, table.Sets[services.servicesMap].Map); err != nil {
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
