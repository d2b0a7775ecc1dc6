package sync

import (
	"context"
	"errors"
	"maps"
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

// A picky kernel refuses batches that add an endpoint, or a source range, at one of the bad
// addresses.
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
			if op.Verb != nft.Add || !k.bad[addressIn(op.Set.Name, &element)] {
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

// addressIn is the address of an endpoint, or with which a source range begins.
func addressIn(set string, element *nft.KeyedElement) (addr netip.Addr) {
	switch {
	case set == "endpoints-tcp":
		addr = netip.AddrFrom4([4]byte([]byte(element.Data[:4])))
	case strings.HasPrefix(set, "allowed-"):
		addr = netip.AddrFrom4([4]byte([]byte(element.Key[4:8])))
	}
	return addr
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
				case op.Set.Name != "endpoints-tcp":
				case op.Verb == nft.Add:
					byKey[element.Key] = addressIn(op.Set.Name, &element)
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
	p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{
		ID:   tracker.PortID{Namespace: "ns", Service: service, Protocol: tracker.TCP, Family: tracker.IPv4},
		Port: 80, ClusterIP: netip.AddrFrom4([4]byte{10, 96, 0, number}),
	}, HasEndpoints: true,
		Lists: &tracker.Lists{Cluster: []netip.AddrPort{netip.AddrPortFrom(pod(endpoint), 8080)}},
	}
	p.Serving = p.Cluster
	return p
}

func pod(number byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 0, number}) }

func (f *feed) set(ports ...*tracker.ServicePort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delta := tracker.Delta{Changed: ports}
	f.deltas = append(f.deltas, delta)
}

// What the log says of a Service that is skipped, and when it is not any more.
const (
	skippedText  = "skipping a Service that the kernel refuses; it stays as it was last committed"
	acceptedText = "the kernel accepts a Service that was skipped"
)

func TestRefusedServiceIsSkipped(t *testing.T) {
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
			if n := b.logged(skippedText); n != 2 {
				t.Errorf("unnamed %v: %d Services logged, want two", unnamed, n)
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
		entry := b.logs.FilterMessage(skippedText).All()
		if len(entry) != 1 || entry[0].ContextMap()["service"] != "ns/a" {
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
		if n := b.logged(skippedText); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
		k.forgive()
		time.Sleep(2 * longestRetry)
		synctest.Wait()
		if b.logged(acceptedText) != 1 || !k.endpointsHeld()[pod(9)] {
			t.Errorf("the Service is still skipped; log: %v", b.logs.All())
		}
	})
}

func TestRefusedServiceIsTriedWhenItChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &picky{bad: map[netip.Addr]bool{pod(9): true}}
		b := start(t, k, Options{}, portWith("a", 1, 9), portWith("b", 2, 2))
		b.change(portWith("a", 1, 8))
		if !k.endpointsHeld()[pod(8)] || len(b.loop.skips.skipped) != 0 {
			t.Errorf("held %v, skipped %v", k.endpointsHeld(), b.loop.skips.skipped)
		}
	})
}

func TestWhatIsNotAboutServicesIsNotIsolated(t *testing.T) {
	for _, err := range []error{
		unix.ENOMEM, unix.EPERM, errors.New("no"), &kernel.BatchError{Err: unix.EMSGSIZE},
		&kernel.OpError{Family: nft.IP, Set: "services", Err: unix.ENOMEM},
		&kernel.OpError{Family: nft.IP, Err: unix.EOPNOTSUPP},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := &table{always: err}
			b := start(t, k, Options{})
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(b.loop.skips.skipped) != 0 {
				t.Errorf("%v: %d Services skipped", err, len(b.loop.skips.skipped))
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

func TestRefusedServiceIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &picky{bad: map[netip.Addr]bool{pod(8): true, pod(9): true}}
		b := start(t, k, Options{}, portWith("a", 1, 9), portWith("b", 2, 2))
		var told []bool
		b.loop.skips.report = func(_, _ string, err error) { told = append(told, err != nil) }
		var leftOut []int
		b.loop.options.Committed = func(r Report) { leftOut = append(leftOut, r.SkippedPorts) }
		for _, endpoint := range []byte{8, 7} {
			b.change(portWith("a", 1, endpoint))
		}
		if !slices.Equal(told, []bool{true, false}) || !slices.Equal(leftOut, []int{1, 0}) {
			t.Errorf("refusals told %v, skipped %v", told, leftOut)
		}
	})
}

// portsWithRanges returns the two ports of a Service at one load-balancer IP, with an endpoint each
// and source ranges.
func portsWithRanges(endpoints [2]byte, ranges ...string) []*tracker.ServicePort {
	var ports []*tracker.ServicePort
	for i, endpoint := range endpoints {
		p := portWith("shop", 1, endpoint)
		p.ID.Port, p.Port = string('a'+rune(i)), uint16(80+i)
		p.LoadBalancers = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
		for _, text := range ranges {
			p.HasSourceRanges, p.Sources = true, append(p.Sources, netip.MustParsePrefix(text))
		}
		ports = append(ports, p)
	}
	return ports
}

// rangesWanted lists the source ranges in a table by their first addresses.
func rangesWanted(t *nft.Table) string {
	var list []string
	for name, held := range t.Sets {
		if name == "endpoints-tcp" {
			continue
		}
		for key, element := range held.Map {
			if addr := addressIn(name, &nft.KeyedElement{Key: key, Element: element}); addr.IsValid() {
				list = append(list, addr.String())
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// TestPortsOfRefusedService changes the source ranges of a Service, and with them an endpoint of each of
// its two ports. If the kernel refuses an endpoint of one port, or the ranges, the whole Service stays as it
// was: its ports have the ranges in common. Another Service changes.
func TestPortsOfRefusedService(t *testing.T) {
	without := func(ports []*tracker.ServicePort) []*tracker.ServicePort {
		for _, p := range ports {
			p.LoadBalancers = nil
		}
		return ports
	}
	for _, tt := range []struct {
		name    string
		after   []*tracker.ServicePort
		refused bool
	}{
		{"nothing is refused", portsWithRanges([2]byte{3, 4}, "20.0.2.0/24"), false},
		{"first port", portsWithRanges([2]byte{9, 4}, "20.0.2.0/24"), true},
		{"second port", portsWithRanges([2]byte{3, 9}, "20.0.2.0/24"), true},
		{"both ports", portsWithRanges([2]byte{9, 9}, "20.0.2.0/24"), true},
		{"ranges of other lengths", portsWithRanges([2]byte{9, 4}, "20.0.1.0/25", "20.0.2.0/24"), true},
		{"without ranges", portsWithRanges([2]byte{9, 4}), true},
		{"without load balancer", without(portsWithRanges([2]byte{9, 4})), true},
		{"ranges", portsWithRanges([2]byte{3, 4}, "20.0.9.0/24"), true},
		{"ranges and first port", portsWithRanges([2]byte{9, 4}, "20.0.9.0/24"), true},
		{"ranges and second port", portsWithRanges([2]byte{3, 9}, "20.0.2.0/24", "20.0.9.0/24"), true},
	} {
		for _, unnamed := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				k := &picky{bad: map[netip.Addr]bool{pod(9): true, netip.MustParseAddr("20.0.9.0"): true}, unnamed: unnamed}
				b := start(t, k, Options{}, append(portsWithRanges([2]byte{1, 2}, "20.0.1.0/24"), portWith("other", 2, 7))...)
				b.change(append(tt.after, portWith("other", 2, 8))...)
				ranges, endpoints, ports := "20.0.2.0", []byte{3, 4, 8}, 0
				if tt.refused {
					ranges, endpoints, ports = "20.0.1.0", []byte{1, 2, 8}, 2
				}
				if got := rangesWanted(b.loop.ruleset.Want()[nft.IP]); got != ranges {
					t.Errorf("%s, unnamed %v: source ranges %q, want %q", tt.name, unnamed, got, ranges)
				}
				want := make(map[netip.Addr]bool)
				for _, endpoint := range endpoints {
					want[pod(endpoint)] = true
				}
				if held := k.endpointsHeld(); !maps.Equal(held, want) {
					t.Errorf("%s, unnamed %v: endpoints %v, want %v", tt.name, unnamed, held, want)
				}
				if len(b.reports) != 2 || b.reports[1].SkippedPorts != ports || b.logged(skippedText) != ports/2 {
					t.Errorf("%s, unnamed %v: %d syncs, %d Services skipped", tt.name, unnamed, len(b.reports), b.logged(skippedText))
				}
			})
		}
	}
}

// TestNewPortOfServiceWithRefusedRanges adds a port to a Service whose source ranges the kernel has
// refused: the port waits with the others of its Service, and other Services do not. When the kernel accepts
// the ranges, all ports come at once.
func TestNewPortOfServiceWithRefusedRanges(t *testing.T) {
	for _, unnamed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			k := &picky{bad: map[netip.Addr]bool{netip.MustParseAddr("20.0.9.0"): true}, unnamed: unnamed}
			b := start(t, k, Options{}, append(portsWithRanges([2]byte{1, 2}, "20.0.1.0/24"), portWith("other", 2, 7))...)
			after := portsWithRanges([2]byte{3, 4}, "20.0.9.0/24")
			b.change(after...)
			added := after[0].With(func(spec *tracker.PortSpec) { spec.ID.Port, spec.Port = "c", 90 })
			b.change(added, portWith("other", 2, 8))
			if got := rangesWanted(b.loop.ruleset.Want()[nft.IP]); got != "20.0.1.0" || b.loop.ruleset.Port(added.ID) != nil {
				t.Errorf("unnamed %v: source ranges %q; the new port: %v", unnamed, got, b.loop.ruleset.Port(added.ID))
			}
			if want := map[netip.Addr]bool{pod(1): true, pod(2): true, pod(8): true}; !maps.Equal(k.endpointsHeld(), want) {
				t.Errorf("unnamed %v: endpoints %v, want %v", unnamed, k.endpointsHeld(), want)
			}
			k.forgive()
			b.pass(10 * time.Minute)
			if got := rangesWanted(b.loop.ruleset.Want()[nft.IP]); got != "20.0.9.0" || b.logged(acceptedText) != 1 ||
				!k.endpointsHeld()[pod(3)] {
				t.Errorf("unnamed %v: source ranges %q, %d Services accepted", unnamed, got, b.logged(acceptedText))
			}
		})
	}
}

// TestRefusalInKernel hands the kernel a Service port that it really refuses, an endpoint of
// the other family, among others.
func TestRefusalInKernel(t *testing.T) {
	g := watchServices(t, 20, 3)
	bad := portWith("bad", 1, 1)
	bad.ClusterIP = netip.MustParseAddr("10.96.200.1")
	bad.Cluster = []netip.AddrPort{netip.MustParseAddrPort("[fd00::1]:8080")}
	good := portWith("good", 2, 2)
	good.ClusterIP = netip.MustParseAddr("10.96.200.2")
	g.feed.set(bad, good)
	g.loop.options.Queue.Notify()
	if report := g.report(t); report.Operations == 0 {
		t.Errorf("report %+v", report)
	}
	g.check(t)
	if len(g.skips) != 1 {
		t.Fatalf("%d Services skipped", len(g.skips))
	}
	want := "table ip kube-nft: add element endpoints-tcp { 10.96.200.1 . tcp . 80 . 0 : "
	if refusal := <-g.skips; refusal.service != "ns/bad" || !strings.HasPrefix(refusal.err.Error(), want) ||
		!errors.Is(refusal.err, unix.EINVAL) {
		t.Errorf("skipped %s: %v", refusal.service, refusal.err)
	}
	if text := lab.Run(t, "", "nft", "list", "map", "ip", "kube-nft",
		"services"); !strings.Contains(text, "10.96.200.2") || strings.Contains(text, "10.96.200.1 ") {
		t.Errorf("the kernel holds\n%s", text)
	}
}

// TestPortsOfRefusedServiceInKernel: the kernel refuses one of two ports while their source ranges change.
func TestPortsOfRefusedServiceInKernel(t *testing.T) {
	g := watchServices(t, 20, 3)
	shop := func(endpoint, source string) []*tracker.ServicePort {
		ports := portsWithRanges([2]byte{1, 2}, source)
		for _, p := range ports {
			p.ClusterIP = netip.MustParseAddr("10.96.200.1")
		}
		ports[0].Cluster = []netip.AddrPort{netip.MustParseAddrPort(endpoint)}
		return ports
	}
	for _, ports := range [][]*tracker.ServicePort{shop("10.244.0.1:8080", "20.0.1.0/24"),
		shop("[fd00::1]:8080", "20.0.2.0/24")} {
		g.feed.set(ports...)
		g.loop.options.Queue.Notify()
		g.report(t)
		g.check(t)
	}
	if len(g.skips) != 1 {
		t.Errorf("%d Services skipped, want one", len(g.skips))
	}
	text := lab.Run(t, "", "nft", "list", "set", "ip", "kube-nft", "allowed-24")
	if !strings.Contains(text, "20.0.1.0") || strings.Contains(text, "20.0.2.0") {
		t.Errorf("the kernel holds\n%s", text)
	}
}

// An overtaken kernel answers questions for a while as if another program had committed since they were read
// for.
type overtaken struct {
	picky
	races     int
	unbounded int // questions without a generation
}

func (k *overtaken) Commit(ctx context.Context, batch nft.Batch) error {
	if batch.Check && batch.Generation == 0 {
		k.unbounded++
	}
	if batch.Check && k.races > 0 {
		k.races--
		return &kernel.BatchError{Err: unix.ERESTART}
	}
	return k.picky.Commit(ctx, batch)
}

// TestRefusalsWhileOthersCommit: a check that another commit has overtaken says nothing. The loop skips the
// right Service and no other.
func TestRefusalsWhileOthersCommit(t *testing.T) {
	for races := range maxTrials {
		synctest.Test(t, func(t *testing.T) {
			k := &overtaken{picky: picky{bad: map[netip.Addr]bool{pod(2): true}, unnamed: true}, races: races}
			b := newBubble(k, Options{}, portWith("good", 1, 1),
				portWith("bad", 2, 2), portWith("fine", 3, 3))
			b.run(t)
			if held := k.endpointsHeld(); !held[pod(1)] || held[pod(2)] || !held[pod(3)] {
				t.Errorf("%d races: the kernel has %v", races, held)
			}
			if len(b.loop.skips.skipped) != 1 || b.loop.backoff.Failures() != 0 || k.unbounded > 0 {
				t.Errorf("%d races: %d Services skipped, %d failed syncs, %d questions about no generation",
					races, len(b.loop.skips.skipped), b.loop.backoff.Failures(), k.unbounded)
			}
		})
	}
}
