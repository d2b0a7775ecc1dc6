package services

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// affinePort is a Service port with session affinity, a cluster IP and that many endpoints.
func affinePort(n, endpoints int) *tracker.ServicePort {
	p := clusterPort(n, endpoints)
	p.Affinity = time.Hour
	return p
}

// TestEntriesChanged: what a change means for entries is told once, and adds up until it is
// committed.
func TestEntriesChanged(t *testing.T) {
	port := affinePort(1, 3)
	fewer, more, slower, local, without := *port, *port, *port, *port, *port
	fewer.Cluster = port.Cluster[:2]
	more.Cluster = append(slices.Clone(port.Cluster), netip.MustParseAddrPort("10.244.250.1:8080"))
	slower.Affinity = 2 * time.Hour
	local.InternalLocal, local.Local = true, port.Cluster[:1]
	without.Affinity = 0
	// A what says what is told of the number of the cluster-wide list.
	type what struct {
		Members int
		Look    bool
		Timeout time.Duration
	}
	for _, tt := range []struct {
		name  string
		after []*tracker.ServicePort
		want  map[bool]what // by list
	}{
		{"nothing", nil, map[bool]what{}},
		{"the same", []*tracker.ServicePort{port}, map[bool]what{}},
		{"an endpoint comes", []*tracker.ServicePort{&more}, map[bool]what{false: {4, false, time.Hour}}},
		{"an endpoint goes", []*tracker.ServicePort{&fewer}, map[bool]what{false: {2, true, time.Hour}}},
		{"it goes and another comes", []*tracker.ServicePort{&fewer, &more}, map[bool]what{false: {4, true, time.Hour}}},
		{"another timeout", []*tracker.ServicePort{&slower}, map[bool]what{false: {3, true, 2 * time.Hour}}},
		{"affinity is given up", []*tracker.ServicePort{&without}, map[bool]what{false: {0, true, 0}}},
		{"a Local policy", []*tracker.ServicePort{&local}, map[bool]what{false: {0, true, 0}, true: {1, true, time.Hour}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRuleset(testConfig())
			r.Apply(changed(port))
			numbers := make(map[uint32]bool)
			for _, e := range r.EntriesChanged() {
				numbers[e.Number] = true
			}
			if len(numbers) != 1 {
				t.Fatalf("%d numbers for one list with one port, want 1", len(numbers))
			}
			r.Committed()
			for _, next := range tt.after {
				r.Apply(changed(next))
			}
			got := make(map[bool]what)
			for _, e := range r.EntriesChanged() {
				got[layout.IsLocalNumber(e.Number)] = what{len(e.Members), e.Look, e.Timeout}
				if takes := e.From != 0; takes != layout.IsLocalNumber(e.Number) {
					t.Errorf("number %d takes over from %d", e.Number, e.From)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
			r.Committed()
			if left := r.EntriesChanged(); len(left) > 0 {
				t.Errorf("%d numbers are left after the commit", len(left))
			}
		})
	}
}

// TestAdoptEntries takes over the maps of a version that had one for each Service port.
func TestAdoptEntries(t *testing.T) {
	port := affinePort(1, 2)
	r := NewRuleset(testConfig())
	r.Apply(changed(port))
	have := nft.NewTable(nft.IP)
	client, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	own := ownMapName(port.ID, group{port: port.Cluster[0].Port()})
	have.Sets[own] = &nft.Elements{Set: &nft.Set{Name: own, Dynamic: true}, Map: map[string]nft.Element{
		nft.AddrKey(client): {Data: nft.AddrKey(port.Cluster[1].Addr()), Life: &nft.Life{Timeout: time.Hour, Expires: time.Minute}},
		nft.AddrKey(other):  {Data: nft.AddrKey(netip.MustParseAddr("10.9.9.9"))}, // has left meanwhile
	}}
	ops := r.AdoptEntries(nft.Tables{nft.IP: have})
	if len(ops) != 1 || ops[0].Verb != nft.Add || len(ops[0].Elements) != 1 {
		t.Fatalf("operations %+v, want one that adds one entry", ops)
	}
	entry := ops[0].Elements[0]
	number, got, _ := nft.SplitNumberedKey(nft.IP, entry.Key)
	if got != client || entry.Data != nft.AddrKey(port.Cluster[1].Addr()) || entry.Life.Expires != time.Minute || ops[0].Set.Name != layout.AffinityMap(number) {
		t.Errorf("entry of %s under %d in %s: %+v", got, number, ops[0].Set.Name, entry.Element)
	}
	if e := r.EntriesChanged(); len(e) != 1 || e[0].Number != number {
		t.Errorf("the number is not that of the Service port: %+v", e)
	}
}

// TestAffinityNeedsFewObjects: no sets of its own, and at most three chains for each Service port,
// whatever frontends it has.
func TestAffinityNeedsFewObjects(t *testing.T) {
	base := NewRuleset(testConfig()).Want()[nft.IP]
	for _, tt := range []struct {
		name   string
		change func(*tracker.ServicePort)
		chains int
	}{
		{"cluster IP", func(*tracker.ServicePort) {}, 2},
		{"node port", func(p *tracker.ServicePort) { p.NodePort = 30080 }, 3},
		{"all frontends", everyFrontend, 3},
		{"all frontends, Local", func(p *tracker.ServicePort) {
			everyFrontend(p)
			p.ExternalLocal, p.InternalLocal, p.Local = true, true, p.Cluster[:1]
		}, 3},
		{"a node port that is its port", func(p *tracker.ServicePort) { everyFrontend(p); p.Port = p.NodePort }, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRuleset(testConfig())
			port := affinePort(1, 2)
			tt.change(port)
			r.Apply(changed(port))
			table := r.Want()[nft.IP]
			if want := len(base.Sets) + layout.AffinityMaps; len(table.Sets) != want {
				t.Errorf("%d sets, want %d", len(table.Sets), want)
			}
			shared := len(r.config.updateChains(nft.IP))
			if got := len(table.Chains) - len(base.Chains) - shared; got != tt.chains {
				t.Errorf("%d chains, want %d", got, tt.chains)
			}
			r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{port.ID: true}})
			if table := r.Want()[nft.IP]; len(table.Chains) != len(base.Chains) || len(table.Sets) != len(base.Sets) || len(table.Sets[layout.MembersSet].Map) != 0 || len(r.families[nft.IP].numbers) != 0 {
				t.Errorf("left behind: %d chains, %d members, %d numbers", len(table.Chains)-len(base.Chains), len(table.Sets[layout.MembersSet].Map), len(r.families[nft.IP].numbers))
			}
		})
	}
}

func everyFrontend(p *tracker.ServicePort) {
	p.NodePort = 30080
	p.LoadBalancers = []netip.Addr{netip.MustParseAddr("192.0.2.10")}
	p.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.11")}
}
