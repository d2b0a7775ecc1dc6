package sync

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// compiling returns a tracker that charges nothing, and a ruleset, without a kernel.
func compiling() (*tracker.Tracker, *services.Ruleset) {
	tr := tracker.New(tracker.Config{NodeName: lab.NodeName, Quota: 1_000_000,
		CPUTime: func() time.Duration { return 0 }})
	return tr, services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}, MasqueradeBit: 14, AffinitySize: 1024})
}

// commitNext makes the next commit, and returns how many elements it has. done says that nothing is left to commit.
func commitNext(tr *tracker.Tracker, r *services.Ruleset) (d tracker.Delta, elements int, done bool) {
	d = tr.Take()
	r.Apply(d)
	r.Advance(r.Room())
	batch := r.Changes()
	r.Committed()
	tr.Hold(r.Held())
	return d, batch.ElementCount(), d.Due.IsZero() && batch.Empty() && !r.Unfinished() && !r.Behind()
}

// TestManyEndpointsLeaveSlots: endpoints leave a large slot table at once, however many slots name them: with the next
// commit, or 1,000 with each commit.
func TestManyEndpointsLeaveSlots(t *testing.T) {
	for _, tt := range []struct{ before, after, commits int }{
		{700, 0, 1}, {700, 2, 1}, {700, 350, 1}, {10_000, 2, 11}, {10_000, 5000, 11},
	} {
		tr, r := compiling()
		s := lab.Service("shop", "web", netip.MustParseAddr("10.97.0.1"))
		s.Annotations = map[string]string{tracker.AnnotationPrefix + "lb-algorithm": "maglev"}
		must(t, tr.SetService(s))
		set := func(endpoints int) {
			must(t, tr.SetSlice(lab.Slice("shop", "web", 0, corev1.IPv4Protocol,
				lab.Addresses(netip.MustParseAddr("10.8.0.1"), endpoints))))
		}
		set(tt.before)
		for done := false; !done; {
			_, _, done = commitNext(tr, r)
		}
		set(tt.after)
		commits, left := 0, tt.before
		for done := false; !done && (left != tt.after || r.Behind()); commits++ {
			var d tracker.Delta
			var n int
			if d, n, done = commitNext(tr, r); n > mostElements {
				t.Errorf("%d endpoints that become %d: a commit has %d elements", tt.before, tt.after, n)
			}
			for _, port := range d.Changed {
				left = len(port.Cluster)
			}
		}
		if left != tt.after || commits > tt.commits {
			t.Errorf("after %d commits, %d of %d endpoints are left, want %d", commits, left, tt.before, tt.after)
		}
	}
}

// A large Service; the zero value is none.
type large struct {
	ports, endpoints int
	sticky, local    bool
	protocol         corev1.Protocol
	algorithm        string
	replaced         int32 // endpoints, half of which get another target port
}

// set makes a tracker have the Service for a tenant.
func (w large) set(t *testing.T, tr *tracker.Tracker, tenant byte) {
	t.Helper()
	namespace := fmt.Sprint("tenant-", tenant)
	s := lab.Service(namespace, "web", netip.AddrFrom4([4]byte{10, 97, 0, tenant}))
	s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeLoadBalancer, nil
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprint("198.51.100.", tenant)}}
	if w.sticky {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	if w.local {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort = 31000 + int32(tenant)
	}
	if w.algorithm != "" {
		s.Annotations = map[string]string{tracker.AnnotationPrefix + "lb-algorithm": w.algorithm}
	}
	addresses := lab.Addresses(netip.AddrFrom4([4]byte{10, 8 + tenant, 0, 1}).Next(), w.endpoints)
	slice := lab.Slice(namespace, "web", 0, corev1.IPv4Protocol, addresses)
	slice.Ports = nil
	other := slice.DeepCopy()
	other.Name += "-other"
	if w.replaced > 0 {
		half := len(addresses) / 2
		slice.Endpoints, other.Endpoints = slice.Endpoints[:half], other.Endpoints[half:]
	} else {
		other.Endpoints = nil
	}
	for i := range slice.Endpoints {
		slice.Endpoints[i].NodeName = new(lab.NodeName)
	}
	for i := range w.ports {
		name, number := fmt.Sprint("p", i), int32(1000+i)
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Protocol: w.protocol, Port: number})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &w.protocol, Port: &number})
		other.Ports = append(other.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &w.protocol,
			Port: new(number + w.replaced)})
	}
	if w.ports == 0 {
		tr.DeleteService(namespace, "web")
	} else {
		must(t, tr.SetService(s))
	}
	must(t, tr.SetSlice(slice))
	must(t, tr.SetSlice(other))
}

// mostElements is how many elements a commit may have: a change that is not divided, and some of what is left of
// others.
const mostElements = 3 * tracker.CommitElements

// TestElementsOfOneCommit: no commit of a change has many more elements than the tracker reckons with.
func TestElementsOfOneCommit(t *testing.T) {
	for _, tt := range []struct {
		name          string
		before, after large
	}{
		{"ports with a long list", large{}, large{ports: 3, endpoints: 4000}},
		{"ports with a long list, sticky", large{}, large{ports: 3, endpoints: 4000, sticky: true}},
		{"a policy Local and a long list", large{}, large{ports: 3, endpoints: 4000, sticky: true, local: true}},
		{"a shared list grows", large{ports: 20, endpoints: 300}, large{ports: 20, endpoints: 4000}},
		{"the first endpoints of a long list", large{ports: 3}, large{ports: 3, endpoints: 4000}},
		{"another protocol", large{ports: 3, endpoints: 4000, sticky: true},
			large{ports: 3, endpoints: 4000, sticky: true, protocol: corev1.ProtocolUDP}},
		{"a second port", large{ports: 1, endpoints: 10_000}, large{ports: 2, endpoints: 10_000}},
		{"a second port, sticky", large{ports: 1, endpoints: 10_000, sticky: true},
			large{ports: 2, endpoints: 10_000, sticky: true}},
		{"a policy Local of a long list", large{ports: 2, endpoints: 10_000},
			large{ports: 2, endpoints: 10_000, local: true}},
		{"a policy Local of a long list, sticky", large{ports: 2, endpoints: 10_000, sticky: true},
			large{ports: 2, endpoints: 10_000, sticky: true, local: true}},
		{"other target ports", large{ports: 2, endpoints: 10_000}, large{ports: 2, endpoints: 10_000, replaced: 1}},
		{"other target ports, sticky", large{ports: 2, endpoints: 10_000, sticky: true},
			large{ports: 2, endpoints: 10_000, sticky: true, replaced: 1}},
		{"another algorithm", large{ports: 2, endpoints: 10_000, algorithm: "maglev"}, large{ports: 2, endpoints: 10_000}},
		{"another algorithm, sticky", large{ports: 2, endpoints: 10_000, algorithm: "maglev", sticky: true},
			large{ports: 2, endpoints: 10_000, sticky: true}},
		{"most slots go", large{ports: 2, endpoints: 10_000, algorithm: "maglev"},
			large{ports: 2, endpoints: 5_000, algorithm: "maglev"}},
		{"affinity comes", large{ports: 2, endpoints: 10_000}, large{ports: 2, endpoints: 10_000, sticky: true}},
		{"affinity goes", large{ports: 2, endpoints: 10_000, sticky: true}, large{ports: 2, endpoints: 10_000}},
		{"ports come to share a list", large{ports: 1, endpoints: 300}, large{ports: 30, endpoints: 300}},
		{"sticky ports get a policy Local", large{ports: 30, endpoints: 700, sticky: true},
			large{ports: 30, endpoints: 700, sticky: true, local: true}},
		{"a policy Local and a long list go", large{ports: 3, endpoints: 4000, sticky: true, local: true}, large{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr, r := compiling()
			for begin, w := range []large{{}, tt.before, tt.after} {
				w.set(t, tr, 1)
				most, commits := 0, 0
				for done := false; !done; {
					var n int
					if _, n, done = commitNext(tr, r); n > mostElements && begin > 0 {
						t.Errorf("a commit has %d elements", n)
					}
					most, commits = max(most, n), commits+1
				}
				t.Logf("step %d: %d elements in the largest of %d commits", begin, most, commits)
			}
		})
	}
}

// TestElementsOfManyChanges: large Services change again and again before their last change is complete.
func TestElementsOfManyChanges(t *testing.T) {
	for seed := range uint64(3) {
		random := rand.New(rand.NewPCG(seed, 0))
		tr, r := compiling()
		tenants := 1 + byte(seed%3)*2
		for commit := 0; ; commit++ {
			if last := commit - int(tenants); last < 0 || last < 150 && random.IntN(6) == 0 {
				tenant := byte(commit) % tenants
				if last >= 0 {
					tenant = byte(random.IntN(int(tenants)))
				}
				anyLarge(random, 5000).set(t, tr, 1+tenant)
			}
			_, n, done := commitNext(tr, r)
			if n > mostElements && commit > int(tenants) {
				t.Errorf("seed %d: commit %d has %d elements, want at most %d", seed, commit, n, mostElements)
			}
			if done && commit > 160 {
				break
			}
		}
	}
}

// TestLargeChangesEnd: ten tenants change a large Service with each commit. Now and then the kernel has all of what
// they may change, so that chains and maps go that are not wanted any more.
func TestLargeChangesEnd(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	tr, r := compiling()
	longest, behind := 0, 0
	for commit := range 600 {
		anyLarge(random, 10_000).set(t, tr, 1+byte(commit%10))
		commitNext(tr, r)
		if behind++; !r.Behind() {
			longest, behind = max(longest, behind), 0
		}
	}
	if longest = max(longest, behind); longest < 50 || longest > 300 {
		t.Errorf("the kernel lacked something for up to %d commits, want 50 to 300", longest)
	}
}

// anyLarge returns a large Service that may have session affinity, a policy Local and slot tables.
func anyLarge(random *rand.Rand, endpoints int) large {
	w := large{ports: 1 + random.IntN(4), endpoints: endpoints, sticky: random.IntN(2) == 0, local: random.IntN(3) == 0}
	if random.IntN(2) == 0 {
		w.algorithm = "maglev"
	}
	return w
}

// TestSecondPortIsOneCommit: a port that comes to share the long list of another one writes no endpoint. With session
// affinity, each port has a commit of its own.
func TestSecondPortIsOneCommit(t *testing.T) {
	for sticky, most := range map[bool]int{false: 1, true: 2} {
		tr, r := compiling()
		for ports := range 2 {
			large{ports: 1 + ports, endpoints: 10_000, sticky: sticky}.set(t, tr, 1)
			commits := 0
			for done := false; !done; {
				var n int
				if _, n, done = commitNext(tr, r); n > 0 {
					commits++
				}
			}
			if ports == 1 && commits > most {
				t.Errorf("session affinity %v: %d commits, want %d", sticky, commits, most)
			}
		}
	}
}

// TestHeldUntilTablesAreRead: a namespace is not held any more if another program deletes the tables before its large
// change is complete, so that all is made anew.
func TestHeldUntilTablesAreRead(t *testing.T) {
	tr, r := compiling()
	large{ports: 2, endpoints: 4000}.set(t, tr, 1)
	for done := false; !done; {
		_, _, done = commitNext(tr, r)
	}
	large{ports: 2, endpoints: 4000, sticky: true}.set(t, tr, 1)
	for !r.Behind() {
		commitNext(tr, r)
	}
	if len(r.Held()) != 1 {
		t.Fatal("the change is not divided: the test shows nothing")
	}
	r.Found(nft.Tables{})
	r.Advance(r.Room())
	if held := r.Held(); r.Behind() || len(held) > 0 {
		t.Errorf("%v are held, though nothing is left", held)
	}
}
