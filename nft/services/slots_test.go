package services

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/maglev"
	"github.com/kube-nft/kube-nft/tracker"
)

// namespaced moves the Service ports of a world to a namespace and to addresses of their own; each is younger than
// the one before.
func namespaced(delta tracker.Delta, namespace string, net byte) tracker.Delta {
	moved := tracker.Delta{Changed: make(map[tracker.PortID]*tracker.ServicePort)}
	for _, p := range inOrder(delta.Changed) {
		b := p.ClusterIP.As4()
		b[0] = net
		p.ID.Namespace, p.ClusterIP = namespace, netip.AddrFrom4(b)
		p.Created = time.Unix(int64(b[2])<<8+int64(b[3]), 0)
		moved.Changed[p.ID] = p
	}
	return moved
}

// withSlots lists who has slot tables.
func withSlots(r *Ruleset) (names []string) {
	for id, port := range r.families[nft.IP].ports {
		if port.hash() != layout.NoHash {
			names = append(names, id.Namespace)
		}
	}
	slices.Sort(names)
	return names
}

// TestWorkFallsOnItsCause: a change is the work of the Service that changes, and so is what it takes from others by the
// slots that it asks for.
func TestWorkFallsOnItsCause(t *testing.T) {
	config := testConfig()
	config.MaglevSlots = 4001 + 600
	r := NewRuleset(config)
	large := maglevWorld(namespaced(cluster(1, 30), "large", 11))
	small := maglevWorld(namespaced(cluster(1, 6), "small", 12))
	r.Apply(large)
	r.Committed()
	if len(r.Work()) > 0 {
		t.Errorf("the first commit is somebody's work: %v", r.Work())
	}
	r.Apply(small)
	work := r.Work()
	if n := work[tracker.PortID{Namespace: "small", Service: "service-0"}]; len(work) != 1 || n < 4001 {
		t.Errorf("slots were taken from another Service: %v", work)
	}
	r.Committed()
	removed := tracker.Delta{Removed: make(map[tracker.PortID]bool)}
	for id := range small.Changed {
		removed.Removed[id] = true
	}
	r.Apply(removed)
	if n := r.Work()[tracker.PortID{Namespace: "small", Service: "service-0"}]; n < 4001 {
		t.Errorf("slots were given back to another Service: %v", r.Work())
	}
}

// TestSlotsAreBounded: a tenant who asks for more slots than there are goes without, others get theirs, whatever comes
// first; and everything is told once.
func TestSlotsAreBounded(t *testing.T) {
	config := testConfig()
	config.MaglevSlots = 10*503 + 100
	loud, calm := maglevWorld(namespaced(cluster(30, 3), "loud", 11)), maglevWorld(namespaced(cluster(2, 3), "calm", 12))
	var want nft.Tables
	for _, order := range [][]tracker.Delta{{loud, calm}, {calm, loud}} {
		r := NewRuleset(config)
		for _, delta := range order {
			r.Apply(delta)
			r.Committed()
		}
		got := strings.Join(withSlots(r), " ")
		if got != "calm calm"+strings.Repeat(" loud", 8) {
			t.Errorf("slots: %s", got)
		}
		fresh, standing := r.Unmet()
		if standing != 22 || len(fresh) < 22 {
			t.Errorf("%d told, %d stand, want 22", len(fresh), standing)
		}
		const text = `Service loud/service-9: metadata.annotations[kube-nft.io/lb-algorithm]: 503 slots for port http (IPv4) are more than are left of the 5130 that all Services of this node may have (--maglev-slots), of which no namespace gets more than others while they ask for more; endpoints are chosen by chance on this node`
		if !slices.ContainsFunc(fresh, func(u Unmet) bool { return u.Refusal().Error() == text }) {
			t.Errorf("told: %v", fresh[len(fresh)-1].Refusal())
		}
		if fresh, _ := r.Unmet(); len(fresh) > 0 {
			t.Errorf("told again: %v", fresh)
		}
		if want != nil {
			if diff := change.Diff(want, r.Want()); !diff.Empty() {
				t.Errorf("the order of objects makes %d operations, first: %s", len(diff.Ops), diff.Ops[0].Text())
			}
		}
		want = r.Want()
		// Once the loud one asks for less, everybody gets slots.
		gone := tracker.Delta{Removed: make(map[tracker.PortID]bool)}
		for _, p := range inOrder(loud.Changed)[:22] {
			gone.Removed[p.ID] = true
		}
		r2 := NewRuleset(config)
		for _, delta := range order {
			r2.Apply(delta)
		}
		r2.Apply(gone)
		if _, standing := r2.Unmet(); standing != 0 || len(withSlots(r2)) != 10 {
			t.Errorf("%d without slots, %d with, when there are enough", standing, len(withSlots(r2)))
		}
	}
}

// TestSlotsOf: what is budgeted is what is programmed, or a few more.
func TestSlotsOf(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for i := range 40 {
		delta := maglevWorld(externalIPs(cluster(1, 1+random.IntN(30)), byte(random.IntN(9))))
		if random.IntN(2) == 0 {
			everywhere(delta)
		}
		slots := 0
		for _, p := range delta.Changed {
			if random.IntN(2) == 0 {
				p.ExternalLocal, p.InternalLocal, p.Local = true, random.IntN(2) == 0, p.Cluster[:(len(p.Cluster)+1)/2]
			}
			slots = NewRuleset(testConfig()).slots.slotsOf(p)
		}
		r := NewRuleset(testConfig())
		r.Apply(delta)
		held := 0
		for name, set := range r.Want()[nft.IP].Sets {
			if strings.HasSuffix(name, "endpoints") || strings.HasPrefix(name, layout.ListsPrefix) {
				held += len(set.Map)
			}
		}
		if held > slots || held < slots/3 {
			t.Errorf("world %d: %d slots are budgeted, %d held", i, slots, held)
		}
	}
}

// TestKernelLacks: without the modules that annotations need, their Services are served as without them, and told.
func TestKernelLacks(t *testing.T) {
	config := testConfig()
	config.Lacks = nft.Lacks{Hash: fmt.Errorf("this kernel lacks hashes of packets: %w", unix.ENOENT), Redirect: unix.ENOENT}
	r := NewRuleset(config)
	delta := maglevWorld(cluster(2, 3))
	for _, p := range delta.Changed {
		p.Settings.Ping = true
	}
	plain := cluster(2, 3)
	r.Apply(delta)
	want := NewRuleset(testConfig())
	want.Apply(plain)
	if diff := change.Diff(want.Want(), r.Want()); !diff.Empty() {
		t.Errorf("%d operations beside plain Services, first: %s", len(diff.Ops), diff.Ops[0].Text())
	}
	fresh, standing := r.Unmet()
	if len(fresh) != 4 || standing != 4 || !strings.Contains(fresh[0].Reason, "this kernel lacks hashes of packets") {
		t.Errorf("%d stand, told %v", standing, fresh)
	}
	r.Apply(plain)
	if _, standing := r.Unmet(); standing != 0 {
		t.Errorf("%d stand when nobody asks", standing)
	}
}

// TestPlacesAreBounded: weights that want very many places are followed less exactly when others want them, too.
func TestPlacesAreBounded(t *testing.T) {
	config := testConfig()
	config.MaglevSlots = 20_000
	r := NewRuleset(config)
	worst := namespaced(cluster(2, 1000), "loud", 11)
	for _, p := range worst.Changed {
		p.ClusterWeights = slices.Repeat([]uint16{65535, 1}, 500)
	}
	modest := weightedWorld(namespaced(cluster(1, 3), "calm", 12), 0)
	r.Apply(worst)
	r.Apply(modest)
	fresh, standing := r.Unmet()
	if standing != 1 || len(fresh) != 1 || !strings.Contains(fresh[0].Refusal().Error(), "Service loud/service-1: metadata.annotations[kube-nft.io/weight] of its EndpointSlices: ") {
		t.Errorf("%d stand, told %v", standing, fresh)
	}
	if got := len(r.Want()[nft.IP].Sets[layout.EndpointsMap].Map); got > 16_384+4_000+10 || got < 16_000 {
		t.Errorf("%d places", got)
	}
	for _, p := range worst.Changed { // a hash in place of weights: another annotation is told
		p.Settings.Maglev = true
	}
	r.Apply(worst)
	if fresh, standing := r.Unmet(); standing != 2 || fresh[0].Annotation != lbAlgorithm {
		t.Errorf("%d stand, told %v", standing, fresh)
	}
}

// BenchmarkSlotsOverBudget is a change of a plain Service and of one with slots, beside thousands that get none.
func BenchmarkSlotsOverBudget(b *testing.B) {
	config := testConfig()
	config.MaglevSlots = 100 * maglev.Size(3)
	for _, n := range []int{100, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := NewRuleset(config)
			r.Apply(maglevWorld(cluster(n, 3)))
			r.Committed()
			for i := 0; b.Loop(); i++ {
				r.Apply(maglevWorld(cluster(1, 5+i%2)))
				r.Committed()
			}
		})
	}
}
