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

// TestWrongEntries: what is as it should be is left alone.
func TestWrongEntries(t *testing.T) {
	for _, f := range nft.Families {
		client, a, b, stranger := testAddr(f, 1), testAddr(f, 2), testAddr(f, 3), testAddr(f, 4)
		groups := map[uint32]Entries{
			16: {Family: f, Number: 16, Members: []netip.Addr{a, b}, Timeout: time.Hour},
			17: {Family: f, Number: 17, Members: []netip.Addr{a}, Timeout: time.Hour},
		}
		entry := func(ep netip.Addr, timeout, expires time.Duration) nft.Element {
			return nft.Element{Data: nft.AddrKey(ep), Life: &nft.Life{Timeout: timeout, Expires: expires}}
		}
		type change struct {
			Number   uint32
			Gone     bool
			Endpoint netip.Addr
			Expires  time.Duration
		}
		for _, tt := range []struct {
			name     string
			number   uint32
			entry    nft.Element
			takeOver map[uint32]uint32
			known    bool // to the number that takes over
			want     []change
		}{
			{"a member", 16, entry(a, time.Hour, time.Minute), nil, false, nil},
			{"no member", 16, entry(stranger, time.Hour, time.Minute), nil, false, []change{{Number: 16, Gone: true}}},
			{"a number that nobody has", 99, entry(a, time.Hour, time.Minute), nil, false, []change{{Number: 99, Gone: true}}},
			{"a longer timeout", 16, entry(a, 3*time.Hour, 2*time.Hour), nil, false, []change{{16, true, a, time.Hour}}},
			{"a shorter timeout", 16, entry(a, time.Minute, time.Second), nil, false, []change{{16, true, a, time.Second}}},
			{"taken over", 16, entry(a, time.Hour, time.Minute), map[uint32]uint32{16: 17}, false, []change{{17, false, a, time.Minute}}},
			{"no member where it is taken over", 16, entry(b, time.Hour, time.Minute), map[uint32]uint32{16: 17}, false, nil},
			{"the client is known there", 16, entry(a, time.Hour, time.Minute), map[uint32]uint32{16: 17}, true, nil},
		} {
			held := map[string]nft.Element{nft.NumberedKey(f, tt.number, client): tt.entry}
			if tt.known {
				held[nft.NumberedKey(f, 17, client)] = entry(a, time.Hour, time.Hour)
			}
			var got []change
			for _, c := range WrongEntries(f, held, func(n uint32) Entries { return groups[n] }, tt.takeOver) {
				number, _, _ := nft.SplitNumberedKey(f, c.Key)
				change := change{Number: number, Gone: c.Before != nil}
				if c.Now != nil {
					change.Endpoint, _ = netip.AddrFromSlice([]byte(c.Now.Data))
					change.Expires = c.Now.Life.Expires
				}
				got = append(got, change)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s: %s: changes %+v, want %+v", f, tt.name, got, tt.want)
			}
		}
	}
}

func testAddr(f nft.Family, last byte) netip.Addr {
	if f == nft.IP6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 15: last})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, last})
}

// TestSurplusEntries fills a map: those who have most give way, and only when it is nearly full.
func TestSurplusEntries(t *testing.T) {
	for _, tt := range []struct {
		name string
		held map[uint32]int
		want map[uint32]int // that go, with a size of 100
	}{
		{"room", map[uint32]int{2: 70, 4: 5}, nil},
		{"nobody else", map[uint32]int{2: 100}, nil},
		{"one has nearly all", map[uint32]int{2: 90, 4: 10}, map[uint32]int{2: 50}},
		{"two share", map[uint32]int{2: 50, 4: 46, 6: 4}, map[uint32]int{2: 27, 4: 23}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			held := make(map[string]nft.Element)
			for number, n := range tt.held {
				for i := range n {
					held[nft.NumberedKey(nft.IP, number, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))] = nft.Element{
						Life: &nft.Life{Timeout: time.Hour, Expires: time.Duration(i+1) * time.Second},
					}
				}
			}
			got := make(map[uint32]int)
			for _, c := range SurplusEntries(nft.IP, held, 100) {
				number, client, _ := nft.SplitNumberedKey(nft.IP, c.Key)
				got[number]++
				if int(client.As4()[3]) >= tt.want[number] {
					t.Errorf("%s of number %d goes before those that expire earlier", client, number)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" && len(tt.want)+len(got) > 0 {
				t.Errorf("entries that go (-want +got):\n%s", diff)
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
