package sync

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/tracker"
)

// A picky kernel refuses batches that add an endpoint at one of the bad addresses.
type picky struct {
	table
	bad     map[netip.Addr]bool
	unnamed bool // it does not say which element it is
}

func (k *picky) Commit(ctx context.Context, batch nft.Batch) error {
	if err := k.refusal(batch); err != nil || batch.Check {
		return err
	}
	return k.table.Commit(ctx, batch)
}

func (k *picky) refusal(batch nft.Batch) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, op := range batch.Ops {
		for _, element := range op.Elements {
			if op.Verb != nft.Add || op.Set.Name != "endpoints" || !k.bad[netip.AddrFrom4([4]byte([]byte(element.Data[:4])))] {
				continue
			}
			refusal := &kernel.OpError{Family: nft.IP, Set: op.Set.Name, Err: unix.EINVAL}
			if !k.unnamed {
				refusal.Element = element.Key
			}
			return refusal
		}
	}
	return nil
}

// forgive makes it take everything.
func (k *picky) forgive() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bad = nil
}

// endpointsHeld are the addresses of endpoints that batches have added and not deleted since
// the table was last made.
func (k *picky) endpointsHeld() map[netip.Addr]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	byKey := make(map[string]netip.Addr)
	for _, batch := range k.batches {
		for _, op := range batch.Ops {
			if op.Table != nil {
				clear(byKey)
			}
			for _, element := range op.Elements {
				switch {
				case op.Set.Name != "endpoints":
				case op.Verb == nft.Add:
					byKey[element.Key] = netip.AddrFrom4([4]byte([]byte(element.Data[:4])))
				default:
					delete(byKey, element.Key)
				}
			}
		}
	}
	held := make(map[netip.Addr]bool)
	for _, addr := range byKey {
		held[addr] = true
	}
	return held
}

func portWith(service string, number byte, endpoint byte) *tracker.ServicePort {
	p := &tracker.ServicePort{
		ID:   tracker.PortID{Namespace: "ns", Service: service, Protocol: tracker.TCP, Family: tracker.IPv4},
		Port: 80, ClusterIP: netip.AddrFrom4([4]byte{10, 96, 0, number}), HasEndpoints: true,
		Cluster: []netip.AddrPort{netip.AddrPortFrom(pod(endpoint), 8080)},
	}
	p.Serving = p.Cluster
	return p
}

func pod(number byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 0, number}) }

func (f *feed) set(ports ...*tracker.ServicePort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delta := tracker.Delta{Changed: make(map[tracker.PortID]*tracker.ServicePort)}
	for _, port := range ports {
		delta.Changed[port.ID] = port
	}
	f.deltas = append(f.deltas, delta)
}

// What the log says of a port that is left out, and when it is not any more.
const (
	leftOutText = "Service port left out: the kernel refuses it"
	takenText   = "Service port taken after all"
)

func TestRefusedServiceIsLeftOut(t *testing.T) {
	for _, unnamed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			k := &picky{bad: map[netip.Addr]bool{pod(3): true, pod(6): true}, unnamed: unnamed}
			var ports []*tracker.ServicePort
			for i := range byte(8) {
				ports = append(ports, portWith("service-"+string('a'+i), i, i))
			}
			b := start(t, k, Options{}, ports...)
			held := k.endpointsHeld()
			for i := range byte(8) {
				if held[pod(i)] == k.bad[pod(i)] {
					t.Errorf("unnamed %v: endpoint %d programmed: %v", unnamed, i, held[pod(i)])
				}
			}
			if n := b.logged(leftOutText); n != 2 {
				t.Errorf("unnamed %v: %d ports logged, want two", unnamed, n)
			}
		})
	}
}

func TestRefusedServiceKeepsItsLastState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &picky{bad: map[netip.Addr]bool{pod(9): true}}
		b := start(t, k, Options{}, portWith("a", 1, 1), portWith("b", 2, 2))
		b.change(portWith("a", 1, 9), portWith("b", 2, 3))
		if held := b.loop.ruleset.Port(portWith("a", 1, 0).ID); held.Cluster[0].Addr() != pod(1) {
			t.Errorf("Service a is wanted with endpoint %v, want the one that works", held.Cluster)
		}
		if held := b.loop.ruleset.Port(portWith("b", 2, 0).ID); held.Cluster[0].Addr() != pod(3) {
			t.Errorf("Service b is wanted with endpoint %v, want the new one", held.Cluster)
		}
		entry := b.logs.FilterMessage(leftOutText).All()
		if len(entry) != 1 || entry[0].ContextMap()["keeps_last_state"] != true {
			t.Errorf("log: %v", entry)
		}
	})
}

func TestRefusedServiceIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &picky{bad: map[netip.Addr]bool{pod(9): true}}
		b := start(t, k, Options{}, portWith("a", 1, 9), portWith("b", 2, 2))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := b.logged(leftOutText); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
		k.forgive()
		time.Sleep(2 * longestRetry)
		synctest.Wait()
		if b.logged(takenText) != 1 || !k.endpointsHeld()[pod(9)] {
			t.Errorf("the Service is still left out; log: %v", b.logs.All())
		}
	})
}

func TestRefusedServiceIsTriedWhenItChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &picky{bad: map[netip.Addr]bool{pod(9): true}}
		b := start(t, k, Options{}, portWith("a", 1, 9), portWith("b", 2, 2))
		b.change(portWith("a", 1, 8))
		if !k.endpointsHeld()[pod(8)] || len(b.loop.refusals.leftOut) != 0 {
			t.Errorf("held %v, left out %v", k.endpointsHeld(), b.loop.refusals.leftOut)
		}
	})
}

func TestWhatIsNotAboutServicesIsNotIsolated(t *testing.T) {
	for _, err := range []error{
		unix.ENOMEM, unix.EPERM, errors.New("no"), &kernel.BatchError{Err: unix.EMSGSIZE},
		&kernel.OpError{Family: nft.IP, Set: "services", Err: unix.ENOMEM}, &kernel.OpError{Family: nft.IP, Err: unix.EOPNOTSUPP},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := &table{always: err}
			b := start(t, k, Options{})
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(b.loop.refusals.leftOut) != 0 {
				t.Errorf("%v: %d ports left out", err, len(b.loop.refusals.leftOut))
			}
			k.answer(nil)
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(b.reports) != 1 {
				t.Errorf("%v: not programmed when it is over", err)
			}
		})
	}
}

func TestRefusedPortIsReportedUntilItIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &picky{bad: map[netip.Addr]bool{pod(8): true, pod(9): true}}
		b := start(t, k, Options{}, portWith("a", 1, 9), portWith("b", 2, 2))
		var told []bool
		b.loop.refusals.report = func(_ tracker.PortID, err error) { told = append(told, err != nil) }
		var leftOut []int
		b.loop.options.Committed = func(r Report) { leftOut = append(leftOut, r.LeftOut) }
		for _, endpoint := range []byte{8, 7} {
			b.change(portWith("a", 1, endpoint))
		}
		if !slices.Equal(told, []bool{true, false}) || !slices.Equal(leftOut, []int{1, 0}) {
			t.Errorf("refusals told %v, left out %v", told, leftOut)
		}
	})
}

// TestRefusalInKernel hands the kernel a Service port that it really refuses, an endpoint of
// the other family, among others.
func TestRefusalInKernel(t *testing.T) {
	g := guardServices(t, 20, 3)
	bad := portWith("bad", 1, 1)
	bad.ClusterIP = netip.MustParseAddr("10.96.200.1")
	bad.Cluster = []netip.AddrPort{netip.MustParseAddrPort("[fd00::1]:8080")}
	good := portWith("good", 2, 2)
	good.ClusterIP = netip.MustParseAddr("10.96.200.2")
	g.feed.set(bad, good)
	g.loop.options.Queue.Ring()
	if report := g.report(t); report.Operations == 0 {
		t.Errorf("report %+v", report)
	}
	g.check(t)
	if len(g.refusals) != 1 {
		t.Fatalf("%d ports left out", len(g.refusals))
	}
	want := "table ip kube-nft: add element endpoints { 10.96.200.1 . tcp . 80 . 0 : "
	if refusal := <-g.refusals; refusal.id != bad.ID || !strings.HasPrefix(refusal.err.Error(), want) || !errors.Is(refusal.err, unix.EINVAL) {
		t.Errorf("left out %s: %v", refusal.id, refusal.err)
	}
	if text := lab.Run(t, "", "nft", "list", "map", "ip", "kube-nft", "services"); !strings.Contains(text, "10.96.200.2") || strings.Contains(text, "10.96.200.1 ") {
		t.Errorf("the kernel holds\n%s", text)
	}
}
