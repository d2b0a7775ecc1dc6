package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/maglev"
	"github.com/kube-nft/kube-nft/tracker"
)

// namespaced moves the Service ports of a world to a namespace and to addresses of their own; each is younger than
// the one before.
func namespaced(delta tracker.Delta, namespace string, net byte) tracker.Delta {
	moved := tracker.Delta{}
	for _, p := range delta.Changed {
		b := p.ClusterIP.As4()
		b[0] = net
		p.ID.Namespace, p.ClusterIP = namespace, netip.AddrFrom4(b)
		p.Created = time.Unix(int64(b[2])<<8+int64(b[3]), 0)
		moved.Changed = append(moved.Changed, p)
	}
	return moved
}

// TestWorkIsCountedByNamespace: what a change touches counts for the namespace of its Service, and the first commit for
// none.
func TestWorkIsCountedByNamespace(t *testing.T) {
	r := NewRuleset(testConfig())
	large, small := maglevWorld(namespaced(cluster(1, 30), "large", 11)), namespaced(cluster(3, 6), "small", 12)
	r.Apply(large)
	r.Committed()
	r.Apply(small)
	of := r.Work().Namespaces
	if n := of["small"].Elements; len(of) != 1 || n < 3*6 || n > 100 {
		t.Errorf("three Services of 6 endpoints: %v", of)
	}
	r.Committed()
	removed := tracker.Delta{Removed: make(map[tracker.PortID]bool)}
	for _, p := range large.Changed {
		removed.Removed[p.ID] = true
	}
	work := make(map[string]int)
	for r.Apply(removed); ; r.Apply(tracker.Delta{}) {
		for namespace, of := range r.Work().Namespaces {
			work[namespace] += of.Elements
		}
		if r.Committed(); !r.Unfinished() {
			break
		}
	}
	if n := work["large"]; len(work) != 1 || n < 4001/8 || n > 4001 {
		t.Errorf("a slot table that goes, with its map: %v", work)
	}
}

// TestQuotaWithoutSlots: a Service port for which the quota leaves no slots chooses by chance, one with weights follows
// them less exactly, and each is reported once.
func TestQuotaWithoutSlots(t *testing.T) {
	r := NewRuleset(testConfig())
	set := func(delta tracker.Delta, without bool) {
		for i, p := range delta.Changed {
			delta.Changed[i] = p.With(func(spec *tracker.PortSpec) { spec.WithoutSlots = without })
		}
		r.Apply(delta)
	}
	expect := func(when string, standing, places int, fresh ...string) {
		t.Helper()
		told, n := r.Unmet()
		var texts []string
		for _, u := range told {
			texts = append(texts, u.Error())
		}
		if got := len(r.Want()[nft.IP].Sets[clusterMap].Map); n != standing || !slices.Equal(texts, fresh) ||
			got != places {
			t.Errorf("%s: %d stand, %d places, reported %q; want %d, %d, %q", when, n, got, texts, standing, places, fresh)
		}
	}
	hashed, weighed := maglevWorld(namespaced(cluster(1, 3), "hashed", 11)), namespaced(cluster(1, 3), "weighed", 12)
	for _, p := range weighed.Changed {
		p.ClusterWeights = []uint16{1, 2, 30}
	}
	const leaves = "port http (IPv4) needs more elements for this annotation than the quota of the namespace " +
		"(--namespace-quota) leaves; "
	set(hashed, true)
	expect("slots", 1, 3, "Service hashed/service-0: metadata.annotations[kube-nft.io/lb-algorithm]: "+leaves+
		"this node chooses endpoints at random")
	set(weighed, true)
	expect("weights", 2, 3+3*maglev.FewPlacesEach,
		"Service weighed/service-0: metadata.annotations[kube-nft.io/weight] of its EndpointSlices: "+leaves+
			"this node rounds the share of each endpoint to a quarter of an equal share")
	set(hashed, false)
	expect("slots after all", 1, 503+3*maglev.FewPlacesEach)
}

// TestUnweighted: a Service port with too many endpoints for weights is reported.
func TestUnweighted(t *testing.T) {
	r, delta := NewRuleset(testConfig()), cluster(1, 3)
	for i, p := range delta.Changed {
		q, l := *p, *p.Lists
		l.Unweighted, q.Lists = true, &l
		delta.Changed[i] = &q
	}
	r.Apply(delta)
	told, standing := r.Unmet()
	const want = "metadata.annotations[kube-nft.io/weight] of its EndpointSlices: port http (IPv4) has more than 512 " +
		"endpoints; each gets an equal share"
	if len(told) != 1 || !strings.Contains(told[0].Error(), want) || standing != 1 {
		t.Errorf("reported %v, %d stand; want %q", told, standing, want)
	}
}

// TestKernelLacks: without the modules that annotations need, their Services are served as without them, and told.
func TestKernelLacks(t *testing.T) {
	config := testConfig()
	config.Lacks = nft.Lacks{Hash: fmt.Errorf("this kernel lacks hashes of packets: %w", unix.ENOENT),
		Redirect: unix.ENOENT}
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
		t.Errorf("%d annotations stand as unmet, and no Service has one", standing)
	}
}
