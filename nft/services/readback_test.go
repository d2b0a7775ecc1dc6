package services

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/nft/services/lists"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestFrontendsOfRandomWorlds holds the read-back of a table against the state that it was
// made from.
func TestFrontendsOfRandomWorlds(t *testing.T) {
	for seed := range uint64(100) {
		w, r := newWorld(t, seed), NewRuleset(testConfig())
		for range 10 {
			r.Apply(w.change())
		}
		for f, table := range r.Want() {
			frontends := readback.New(table).Frontends()
			if len(frontends) != len(r.families[f].frontends) {
				t.Fatalf("seed %d: %d frontends, want %d", seed, len(frontends), len(r.families[f].frontends))
			}
			for _, s := range frontends {
				checkFrontend(t, &s, r.families[f].frontends[s.Frontend])
			}
		}
	}
}

// TestEndpointListsHaveFrontends: each endpoint in a list of a frontend is under the key of an element of the
// verdict map, and both maps have the same fields. Reading large lists by their keys depends on it.
func TestEndpointListsHaveFrontends(t *testing.T) {
	found := make(map[string]int)
	for seed := range uint64(100) {
		w, r := newWorld(t, seed), NewRuleset(testConfig())
		for range 10 {
			r.Apply(w.change())
		}
		for _, table := range r.Want() {
			for _, m := range layout.EndpointMaps() {
				name := m.Name()
				lists, frontends := table.Sets[name], table.Sets[layout.VerdictMap(m.NodePort)]
				if !slices.Equal(lists.Set.Key, append(slices.Clip(frontends.Set.Key), nft.FieldIndex)) {
					t.Fatalf("%s has the fields %v, its frontends %v", name, lists.Set.Key, frontends.Set.Key)
				}
				for key := range lists.Map {
					if _, ok := frontends.Map[key[:len(key)-4]]; !ok {
						t.Fatalf("seed %d: element %s of %s has no frontend", seed, lists.ElementText(table.Family, key), name)
					}
					found[name]++
				}
			}
		}
	}
	if len(found) != len(layout.EndpointMaps()) {
		t.Errorf("elements were found in %v, want all maps", found)
	}
}

func checkFrontend(t *testing.T, got *readback.Frontend, state *frontendState) {
	t.Helper()
	want := state.shown
	p, ok := layout.PolicyOf(got.Verdict)
	if want.policy.Affinity != 0 { // lengths are not in the name
		p.Cluster, p.Local = want.policy.Cluster, want.policy.Local
	}
	p.NodePort = want.policy.NodePort
	if port := state.claims.first().port; port.listNumber() != 0 {
		switch want.policy.Kind {
		case layout.Internal, layout.External, layout.ExternalFallback:
			want.cluster = port.cluster
		case layout.InternalLocal:
			want.local = port.local
		case layout.ExternalLocal:
			want.cluster, want.local = port.cluster, port.local
		}
	}
	if !ok || want.policy.Kind != layout.Refused && want.policy.Kind != layout.Dropped && p != want.policy {
		t.Errorf("%s: %s is read as policy %+v, want %+v", got.Frontend, got.Verdict, p, want.policy)
	}
	if got.Name.String() != layout.NameIn(want.comment) || !slices.Equal(got.Options, layout.ParseOptions(want.comment)) ||
		!sameList(got.Cluster, want.cluster) || !sameList(got.Local, want.local) {
		t.Errorf("%s: got %+v, want %+v", got.Frontend, got, want)
	}
	chooses := !slices.Contains([]layout.PolicyKind{layout.Refused, layout.Dropped, layout.Passed}, want.policy.Kind)
	if hash := state.claims.first().port.hash(); chooses && got.Hash != hash {
		t.Errorf("%s: the hash is %d, want %d", got.Frontend, got.Hash, hash)
	}
	if owner := state.claims.first().port.current; want.updates != 0 && got.Affinity != owner.Affinity {
		t.Errorf("%s: affinity %s, want %s", got.Frontend, got.Affinity, owner.Affinity)
	}
}

// sameList reports whether a list was read as it is programmed.
func sameList(got readback.List, want lists.Places) bool {
	found := make(map[netip.AddrPort]int)
	for i := range want.Len() {
		found[want.At(i)]++
	}
	for i, ep := range got.All() {
		n := 1
		if got.Places != nil {
			n = got.Places[i]
		}
		if found[ep] != n {
			return false
		}
	}
	return got.Len() == len(found)
}

// TestAffinityMapsOfPacket: to explain a connection, the entries of the Service port that it goes to have to be read.
func TestAffinityMapsOfPacket(t *testing.T) {
	r := NewRuleset(testConfig())
	port, other := clusterPort(0, 2), clusterPort(1, 2)
	port.Affinity, other.Affinity = time.Hour, time.Hour
	r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{port, other}})
	table := r.Want()[nft.IP]
	p := nft.Packet{Source: netip.MustParseAddr("10.244.0.9"), Destination: port.ClusterIP, Protocol: 6, Port: 80,
		Interface: "eth0"}
	sets := readback.New(table).AffinityMaps(p)
	number := r.families[nft.IP].ports[port.ID].affinity.Find(false, 8080).Number
	if want := layout.AffinityMap(number); len(sets) != 1 || sets[0].Name != want {
		t.Fatalf("%d maps, want %s", len(sets), want)
	}
	table.Sets[sets[0].Name].Map[nft.NumberedKey(nft.IP, number,
		p.Source)] = nft.Element{Data: nft.AddrKey(port.Cluster[1].Addr())}
	result := table.Trace(p)
	if diff := cmp.Diff(port.Cluster[1:], result.Endpoints,
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("endpoints of a client with an entry (-want +got):\n%s", diff)
	}
}
