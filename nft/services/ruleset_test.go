package services

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestRandomChanges takes worlds through random changes and holds after each of them: the
// changes are the difference of the whole tables, and turn those that were into those that
// are wanted; what grew by changes equals what is made at once; every frontend does what its
// owner asked for.
func TestRandomChanges(t *testing.T) {
	for seed := range worlds(20) {
		w, r, applied := startWorld(t, seed)
		for step := range 25 {
			r.Apply(w.change())
			commitChanges(t, seed, r, applied)
			checkEqual(t, seed, applied, r.Want())
			if step%5 == 0 {
				for r.Unfinished() { // slot tables that no packet finds any more
					r.Apply(tracker.Delta{})
					commitChanges(t, seed, r, applied)
				}
				checkFromScratch(t, seed, w, applied)
			}
			checkFates(t, seed, w, r.Want())
			for _, table := range r.Want() {
				checkMembers(t, table)
			}
		}
	}
}

// worlds is how many random worlds a test goes through: n, and in a short run a quarter of them.
func worlds(n uint64) uint64 {
	if testing.Short() {
		return n / 4
	}
	return n
}

// startWorld returns a world without Services, and a ruleset for it that was committed.
func startWorld(t *testing.T, seed uint64) (*world, *Ruleset, nft.Tables) {
	t.Helper()
	w, r, applied := newWorld(t, seed), NewRuleset(testConfig()), nft.Tables{}
	r.SetNodePortAddresses(nodeAddresses)
	if err := apply(applied, change.Diff(applied, r.Want())); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	r.Committed()
	return w, r, applied
}

// commitChanges applies the changes, which have to be the difference of the whole tables.
func commitChanges(t *testing.T, seed uint64, r *Ruleset, applied nft.Tables) {
	t.Helper()
	changes := r.Changes()
	if diff := cmp.Diff(textOf(change.Diff(applied, r.Want())), textOf(changes)); diff != "" {
		t.Fatalf("seed %d: the changes are not the difference of the tables (-difference +changes):\n%s", seed, diff)
	}
	if err := apply(applied, changes); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	r.Committed()
}

func textOf(b nft.Batch) (lines []string) {
	for _, op := range b.Ops {
		lines = append(lines, op.Text())
	}
	return lines
}

var nodeAddresses = []netip.Addr{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("fd00::2")}

func checkEqual(t *testing.T, seed uint64, got, want nft.Tables) {
	t.Helper()
	if batch := change.Diff(got, want); !batch.Empty() {
		t.Fatalf("seed %d: tables differ (-want +got):\n%s", seed, cmp.Diff(want.Text(), got.Text()))
	}
}

// checkFromScratch is a restart: a new ruleset that adopts the tables has nothing to write. It removes a list that no
// frontend leads to: ports keep the list that they have shared, also while others have all their frontends.
func checkFromScratch(t *testing.T, seed uint64, w *world, applied nft.Tables) {
	t.Helper()
	r := NewRuleset(testConfig())
	r.Adopt(applied)
	r.SetNodePortAddresses(nodeAddresses)
	r.Apply(w.everything())
	batch := change.Diff(applied, r.Want())
	unused := make(map[uint32]bool) // lists whose chain goes: no rule leads there
	for _, op := range batch.Ops {
		if op.Verb == nft.Delete && op.Chain != nil {
			number, _ := layout.ListOfChain(op.Chain.Name)
			unused[number] = true
		}
	}
	if slices.ContainsFunc(batch.Ops, func(op nft.Op) bool { return op.Verb == nft.Add || !ofJointList(op, unused) }) {
		t.Fatalf("seed %d: a restart writes %d operations, first: %s", seed, len(batch.Ops), batch.Ops[0].Text())
	}
}

// ofJointList reports whether an operation is about one of certain joint lists alone.
func ofJointList(op nft.Op, numbers map[uint32]bool) bool {
	if op.Set != nil && op.Set.Name == layout.MembersSet {
		return !slices.ContainsFunc(op.Elements, func(e nft.KeyedElement) bool {
			return !numbers[binary.NativeEndian.Uint32([]byte(e.Key))/2] // see layout.ListNumber
		})
	}
	for number := range numbers {
		switch {
		case op.Chain != nil:
			if op.Chain.Name == layout.ListChain(number, false) || op.Chain.Name == layout.ListChain(number, true) {
				return true
			}
		case op.Set != nil && len(op.Elements) == 0: // the last list there
			if slices.Contains([]string{layout.AddressesMap(number), layout.PortsMap(number, tracker.TCP),
				layout.PortsMap(number, tracker.UDP), layout.PortsMap(number, tracker.SCTP)}, op.Set.Name) {
				return true
			}
		}
	}
	return false
}

// checkFates sends a packet of each kind of client to every frontend and compares what the
// chains do with what the Service ports say.
func checkFates(t *testing.T, seed uint64, w *world, tables nft.Tables) {
	t.Helper()
	hashed := make(map[string]netip.AddrPort) // what the hash of an address chooses, alike at all frontends
	for f, claims := range w.claims() {
		owner := slices.MinFunc(claims, first)
		for _, client := range clients(owner.port.ID.Family) {
			p := client.packet(f, owner.port.ID.Family)
			got := tables[owner.port.ID.Family].Trace(p)
			want := owner.result(client)
			got.Steps = nil
			if err := owner.checkShares(&want, &got, client, hashed); err != nil {
				t.Fatalf("seed %d: %s from %s: %v\n%+v", seed, f, client.name, err, owner.port)
			}
			slices.SortFunc(got.Endpoints, netip.AddrPort.Compare)
			slices.SortFunc(got.Hairpin, netip.AddrPort.Compare)
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Fatalf("seed %d: %s from %s (-want +got):\n%s%+v", seed, f, client.name, diff, owner.port)
			}
		}
	}
}

// checkShares compares the shares of endpoints with their weights, and says where one endpoint is to
// be the only one: that of the client's hash.
func (e expectation) checkShares(want, got *nft.TraceResult, c client, hashed map[string]netip.AddrPort) error {
	p := e.port
	if want.Outcome != "dnat" {
		return nil
	}
	if want.Hash = got.Hash; p.Settings.Maglev != (got.Hash != "") ||
		p.Settings.Maglev && p.Settings.HashAddress != (got.Hash == nft.HashAddress) {
		return fmt.Errorf("the endpoint follows from %q", got.Hash)
	}
	if got.Hash == nft.HashAddress {
		if len(got.Endpoints) != 1 || !slices.Contains(want.Endpoints, got.Endpoints[0]) {
			return fmt.Errorf("endpoints %v, want one of %v", got.Endpoints, want.Endpoints)
		}
		who := fmt.Sprint(p.ID, p.ID.Family, c.name, want.Endpoints)
		if other, known := hashed[who]; known && other != got.Endpoints[0] {
			return fmt.Errorf("endpoint %v, but %v at another frontend", got.Endpoints[0], other)
		}
		hashed[who], want.Endpoints = got.Endpoints[0], got.Endpoints
		return nil
	}
	weights := make(map[netip.AddrPort]float64)
	for i, ep := range p.Endpoints(p.Cluster) {
		if weights[ep] = 1; p.ClusterWeights != nil {
			weights[ep] = float64(p.ClusterWeights[i])
		}
	}
	sum := 0.0
	for _, ep := range want.Endpoints {
		sum += weights[ep]
	}
	for i, ep := range got.Endpoints {
		share, off := 1/float64(len(got.Endpoints)), 1.0/64/float64(len(got.Endpoints))
		if got.Shares != nil {
			share = got.Shares[i]
		}
		if ideal := weights[ep] / sum; math.Abs(share-ideal) > off*1.001+0.01*ideal {
			return fmt.Errorf("%v has %.4f of the connections, want %.4f", ep, share, ideal)
		}
	}
	got.Shares = nil
	return nil
}

// An expectation is a Service port at one of its frontends, as its owner sees it.
type expectation struct {
	port   *tracker.ServicePort
	kind   string
	router bool // the address has the ipMode Router
}

type place struct {
	tracker.Frontend
	family tracker.Family
}

func (w *world) claims() map[place][]expectation {
	all := make(map[place][]expectation)
	for _, id := range slices.SortedFunc(maps.Keys(w.ports), tracker.PortID.Compare) {
		p, seen := w.ports[id], make(map[netip.Addr]bool)
		add := func(kind string, addr netip.Addr, port uint16) {
			if !seen[addr] && port != 0 {
				seen[addr] = true
				at := place{tracker.Frontend{Address: addr, Protocol: id.Protocol, Port: port}, id.Family}
				all[at] = append(all[at], expectation{p, kind, kind == "balancer" && slices.Contains(p.Routers, addr)})
			}
		}
		add("cluster", p.ClusterIP, p.Port)
		for _, addr := range p.LoadBalancers {
			add("balancer", addr, p.Port)
		}
		for _, addr := range p.ExternalIPs {
			add("external", addr, p.Port)
		}
		add("node port", tracker.NodePort(id.Family, 0, 0).Address, p.NodePort)
	}
	return all
}

// first orders claims to one place as docs/limits.md does: cluster IP, load balancer's address,
// external IP; then the older Service.
func first(a, b expectation) int {
	rank := func(e expectation) int {
		return slices.Index([]string{"cluster", "balancer", "external", "node port"}, e.kind)
	}
	if c := rank(a) - rank(b); c != 0 {
		return c
	}
	if c := a.port.Created.Compare(b.port.Created); c != 0 {
		return c
	}
	return a.port.ID.Compare(b.port.ID)
}

// A client opens connections.
type client struct {
	name string
	addr netip.Addr
	pod  bool
	node bool
}

func clients(family tracker.Family) []client {
	node := nodeAddresses[0]
	if family == tracker.IPv6 {
		node = nodeAddresses[1]
	}
	return []client{
		{name: "a pod", addr: address(family, 244, 200), pod: true},
		{name: "the node", addr: node, node: true},
		{name: "outside, low", addr: address(family, 113, 1)},
		{name: "outside, high", addr: address(family, 113, 200)},
	}
}

func (c client) packet(f place, family tracker.Family) nft.Packet {
	p := nft.Packet{Source: c.addr, Destination: f.Address, Protocol: uint8(f.Protocol), Port: f.Port, Interface: "eth0",
		SourceLocal: c.node}
	if c.node {
		p.Interface = ""
	}
	if f.NodePort() {
		p.Destination, p.DestinationLocal = nodeAddresses[0], true
		if family == tracker.IPv6 {
			p.Destination = nodeAddresses[1]
		}
	}
	return p
}

// result returns what should become of a connection. It follows from the Service API's documentation alone, and shares
// nothing with the code that compiles policies.
func (e expectation) result(c client) nft.TraceResult {
	p := e.port
	limited := e.kind == "balancer" && p.HasSourceRanges || e.kind == "node port" && p.RangesForNodePort && !c.node
	if limited && !slices.ContainsFunc(p.Sources, func(s netip.Prefix) bool { return s.Contains(c.addr) }) {
		return nft.TraceResult{Outcome: "drop"}
	}
	switch {
	case !p.HasEndpoints && e.router:
		return nft.TraceResult{Outcome: "accept"}
	case !p.HasEndpoints:
		return nft.TraceResult{Outcome: "reject"}
	}
	list, masquerade := p.Cluster, true
	fallback := p.Settings.LocalFallback && len(p.Local) == 0
	switch {
	case e.kind == "cluster":
		masquerade = !c.pod
		if p.InternalLocal && !fallback {
			list = p.Local
		}
	case p.ExternalLocal && c.pod:
		masquerade = false
	case p.ExternalLocal && !c.node && !fallback:
		list, masquerade = p.Local, false
	}
	switch {
	case len(list) == 0 && e.router:
		return nft.TraceResult{Outcome: "accept"}
	case len(list) == 0:
		return nft.TraceResult{Outcome: "drop"}
	}
	endpoints := slices.SortedFunc(slices.Values(p.Endpoints(list)), netip.AddrPort.Compare)
	return nft.TraceResult{Outcome: "dnat", Endpoints: endpoints, Masquerade: masquerade}
}

// TestPortChanges: what differs from the last commit is what has changed, come or gone since, whatever was in between.
func TestPortChanges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	r := NewRuleset(testConfig())
	wanted, committed := make(map[tracker.PortID]*tracker.ServicePort), make(map[tracker.PortID]*tracker.ServicePort)
	for step := range 2000 {
		port := clusterPort(random.IntN(3), 1+random.IntN(3))
		switch random.IntN(5) {
		case 0:
			r.Committed()
			committed = maps.Clone(wanted)
		case 1, 2:
			r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{port.ID: true}})
			delete(wanted, port.ID)
		default:
			if before := committed[port.ID]; before != nil && random.IntN(3) == 0 {
				port = before // back to what it was
			}
			r.Apply(changed(port))
			wanted[port.ID] = port
		}
		want := make(map[tracker.PortID]PortChange)
		for i := range 3 {
			id := clusterPort(i, 0).ID
			if c := (PortChange{committed[id], wanted[id]}); c.Before != c.After {
				want[id] = c
			}
		}
		if got := r.PortChanges(); !maps.Equal(got, want) {
			t.Fatalf("step %d: %v, want %v", step, got, want)
		}
		if n := len(r.families[nft.IP].changedPorts); n > 6 {
			t.Fatalf("step %d: %d ports are kept", step, n)
		}
	}
}

// TestReserve: at an address that is there for Services alone, unused ports are rejected, whatever comes and goes
// around it.
func TestReserve(t *testing.T) {
	r := NewRuleset(testConfig())
	external, cluster := netip.MustParseAddr("198.51.100.7"), clusterPort(0, 1).ClusterIP
	expect := func(step string, addr netip.Addr, outcome string) {
		t.Helper()
		p := nft.Packet{Source: netip.MustParseAddr("192.0.2.1"), Destination: addr, Protocol: unix.IPPROTO_TCP, Port: 9}
		if result := r.Want()[nft.IP].Trace(p); result.Outcome != outcome {
			t.Errorf("%s: a packet to %s: %s, want %s", step, addr, result.Outcome, outcome)
		}
	}
	reserve := func(addrs ...netip.Addr) {
		reserved := make(map[netip.Addr]bool)
		for _, addr := range addrs {
			reserved[addr] = true
		}
		r.Reserve(reserved)
	}
	reserve(external, cluster, netip.MustParseAddr("2001:db8::7"))
	expect("reserved", external, "reject")
	ports := make([]*tracker.ServicePort, manyPorts)
	for i := range ports {
		ports[i] = clusterPort(i, 1)
	}
	r.Apply(changed(ports...))
	r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{ports[0].ID: true}})
	expect("without its Service", cluster, "reject")
	reserve(external)
	expect("reserved no more", cluster, "accept")
	expect("still reserved", external, "reject")
	reserve()
	expect("none is reserved", external, "accept")
	expect("of a Service", ports[1].ClusterIP, "reject")
}
