package tracker

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

var stepSeed = flag.Uint64("seed", 0, "the seed of TestRandomSteps; 0: a few random ones, more with -count")

// TestRandomSteps edits the Services of a namespace at random and looks at each step, while the namespace may add
// something or not: what was deleted is never served again and soon gone, no port is without an endpoint in between,
// no step is large, and in the end everything is as wanted.
func TestRandomSteps(t *testing.T) {
	seeds := []uint64{*stepSeed}
	if *stepSeed == 0 {
		seeds = nil
		for range 12 {
			seeds = append(seeds, rand.Uint64())
		}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { newStepWorld(seed).run(t) })
	}
}

// A stepWorld follows the steps of a namespace. Its Services are a function of their plans, which edits change.
type stepWorld struct {
	*randomWorld
	now       time.Time
	plans     []*stepPlan
	endpoints int                     // how many there may be
	served    map[PortID]*ServicePort // what Take has handed out
	want      map[PortID]*ServicePort // what a new Tracker makes of the objects
	owed      bool                    // the namespace may add nothing in this step
	log       []string                // what happened
}

// A stepPlan is what a Service is to be.
type stepPlan struct {
	name                                                  string
	gone                                                  bool
	uid                                                   int
	ports                                                 int      // the first ones of those that there may be
	renamed                                               bool     // the first port has another name
	numbers, targets                                      int32    // added to the numbers of ports, and of their endpoints
	states                                                []string // of each endpoint; "-": there is none
	weight                                                string   // of the endpoints in the second slice
	affinity, internal, external, nodePorts, maglev, ping bool
	fallback                                              bool
	addresses, ips                                        []string
	ranges                                                []string
}

func newStepWorld(seed uint64) *stepWorld {
	w := &stepWorld{randomWorld: newRandomWorld(seed), now: started, served: make(map[PortID]*ServicePort)}
	w.endpoints = one(w.randomWorld, 3, 8, 40)
	for _, name := range []string{"web", "api"}[:1+w.IntN(2)] {
		p := &stepPlan{name: name, ports: 1 + w.IntN(5), states: make([]string, w.endpoints), weight: "1"}
		w.changeEndpoints(p, 0)
		w.plans = append(w.plans, p)
	}
	return w
}

// edit changes a plan in one way.
func (w *stepWorld) edit(p *stepPlan) (what string) {
	flip := func(b *bool) { *b = !*b }
	some := func(texts ...string) (list []string) {
		for _, text := range texts {
			if w.chance(2) {
				list = append(list, text)
			}
		}
		return list
	}
	switch n := w.IntN(23); n {
	case 0:
		flip(&p.gone)
		return "Service comes or goes"
	case 1:
		p.uid++
		return "another Service of the name"
	case 2, 3:
		p.ports = 1 + w.IntN(8)
		return fmt.Sprint(p.ports, " ports")
	case 4:
		flip(&p.renamed)
		return "a port is renamed"
	case 5:
		p.numbers = int32(w.IntN(2))
		return "numbers of ports"
	case 6, 7:
		p.targets = int32(w.IntN(3))
		return "target ports"
	case 8:
		flip(&p.affinity)
		return fmt.Sprint("affinity ", p.affinity)
	case 9, 10:
		flip(&p.internal)
		return fmt.Sprint("internal Local ", p.internal)
	case 11:
		flip(&p.external)
		return fmt.Sprint("external Local ", p.external)
	case 12:
		flip(&p.nodePorts)
		return fmt.Sprint("node ports ", p.nodePorts)
	case 13:
		flip(&p.maglev)
		return fmt.Sprint("Maglev ", p.maglev)
	case 14:
		flip(&p.ping)
		return fmt.Sprint("ping ", p.ping)
	case 15:
		p.addresses = some("198.51.100.1", "198.51.100.2")
		return fmt.Sprint("load balancer ", p.addresses)
	case 16:
		p.ips = some("203.0.113.1", "203.0.113.2", "203.0.113.3")
		return fmt.Sprint("external IPs ", p.ips)
	case 17:
		p.ranges = some("192.0.2.0/26", "192.0.2.64/27", "192.0.2.128/25", "192.0.2.160/27", "192.0.2.0/28")
		return fmt.Sprint("ranges ", p.ranges)
	case 18:
		p.weight = one(w.randomWorld, "0", "1", "2", "5")
		return "weight " + p.weight
	case 22:
		flip(&p.fallback)
		return fmt.Sprint("local-fallback ", p.fallback)
	default:
		return w.changeEndpoints(p, n-18)
	}
}

// changeEndpoints changes a few endpoints of a plan, or more of them.
func (w *stepWorld) changeEndpoints(p *stepPlan, how int) string {
	switch {
	case how == 3 && w.chance(2): // others replace all of them
		for i, state := range p.states {
			p.states[i] = map[bool]string{true: "", false: "-"}[state != ""]
		}
		return "endpoints are replaced"
	case how == 3:
		clear(p.states)
		for i := range p.states {
			p.states[i] = "-"
		}
		return "no endpoints"
	}
	share := one(w.randomWorld, 1, 2, 4, len(p.states))
	for i := range p.states {
		if how == 0 || w.chance(share) {
			p.states[i] = one(w.randomWorld, "", "", "-", "-", " notready terminating", " notready")
		}
	}
	return "endpoints"
}

// set writes the objects of a plan.
func (w *stepWorld) set(t *testing.T, tr *Tracker, p *stepPlan) {
	key := objectName{"shop", p.name}
	if w.services[key] = w.serviceOf(p); p.gone {
		delete(w.services, key)
		tr.DeleteService("shop", p.name)
	} else {
		must(t, tr.SetService(w.services[key]))
	}
	for n := range 2 {
		s := w.sliceOf(p, n)
		w.slices[objectName{"shop", s.Name}] = s
		must(t, tr.SetSlice(s))
	}
}

func (w *stepWorld) portName(p *stepPlan, i int) string {
	if i == 0 && p.renamed {
		return "renamed"
	}
	return fmt.Sprint("p", i)
}

func (w *stepWorld) serviceOf(p *stepPlan) *corev1.Service {
	return newService(named("shop", p.name, len(p.name)+int(p.name[0])), func(s *corev1.Service) {
		s.UID, s.Spec.Ports = types.UID(fmt.Sprint(p.name, p.uid)), nil
		for i := range p.ports {
			port := corev1.ServicePort{Name: w.portName(p, i), Protocol: corev1.ProtocolTCP, Port: int32(80+i) + 100*p.numbers}
			if p.nodePorts {
				port.NodePort = int32(30000+100*int(p.name[0])+i) + 50*p.numbers
			}
			s.Spec.Ports = append(s.Spec.Ports, port)
		}
		if p.affinity {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}
		if p.internal {
			internalLocal(s)
		}
		if p.nodePorts {
			s.Spec.Type = corev1.ServiceTypeNodePort
		}
		if len(p.addresses) > 0 {
			balanced(p.addresses...)(s)
		}
		if p.external && (p.nodePorts || len(p.addresses) > 0) {
			externalLocal(s)
		}
		s.Spec.ExternalIPs, s.Spec.LoadBalancerSourceRanges = p.ips, p.ranges
		s.Annotations = make(map[string]string)
		if p.maglev {
			s.Annotations["kube-nft.io/lb-algorithm"] = "maglev"
		}
		if p.ping {
			s.Annotations["kube-nft.io/ping"] = "true"
		}
		if p.fallback {
			s.Annotations["kube-nft.io/local-fallback"] = "cluster"
		}
	})
}

// onNodeA reports whether an endpoint is on this node.
func onNodeA(ep netip.AddrPort) bool { return ep.Addr().As4()[3]%3 == 0 }

func (w *stepWorld) sliceOf(p *stepPlan, n int) *discoveryv1.EndpointSlice {
	s := newSlice(fmt.Sprint(p.name, "-", n))
	s.Labels[discoveryv1.LabelServiceName], s.Ports = p.name, nil
	for i := range p.ports {
		target := 8000 + 100*p.targets
		if p.targets == 2 {
			target += int32(i)
		}
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(w.portName(p, i)), Port: &target})
	}
	if n == 1 {
		s.Annotations = map[string]string{"kube-nft.io/weight": p.weight}
	}
	for i, state := range p.states {
		if i%2 != n || state == "-" {
			continue
		}
		at := netip.AddrFrom4([4]byte{10, 0, p.name[0], byte(1 + i)})
		if onNodeA(netip.AddrPortFrom(at, 0)) {
			state += " node=node-a"
		}
		s.Endpoints = append(s.Endpoints, newEndpoint(at.String()+state))
	}
	return s
}

func (w *stepWorld) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *stepWorld) run(t *testing.T) {
	defer func(most, joint, weighted int) {
		mostWork, jointFrom, mostWeighted = most, joint, weighted
	}(mostWork, jointFrom, mostWeighted)
	mostWork, jointFrom = one(w.randomWorld, mostWork, 200, 10, 40), one(w.randomWorld, jointFrom, 4, 30)
	mostWeighted = one(w.randomWorld, mostWeighted, 2, 5)
	w.note("%d elements in a step, lists are shared from %d on, and have no weights beyond %d", mostWork, jointFrom,
		mostWeighted)
	tr := New(Config{NodeName: "node-a", Clock: func() time.Time { return w.now },
		CPUTime: func() time.Duration { return 0 }})
	tr.Take()
	w.followed = tr
	for range 60 {
		for range 1 + w.IntN(3) {
			p := w.plans[w.IntN(len(w.plans))]
			w.note("%s: %s", p.name, w.edit(p))
			w.set(t, tr, p)
		}
		fresh := newTracker(Config{})
		w.replay(fresh)
		w.want = byPort(fresh.Take().Changed)
		if w.chance(2) {
			w.note("the namespace owes")
			tr.Charge("shop", time.Hour)
		}
		w.take(t, tr, 1+w.IntN(4))
		if w.chance(3) {
			w.note("the namespace has paid")
			w.now = w.now.Add(1000 * time.Hour)
			w.take(t, tr, one(w.randomWorld, 1, 10_000))
		}
		if t.Failed() {
			t.Log(strings.Join(w.log[max(0, len(w.log)-25):], "\n"))
			return
		}
	}
}

// take takes so many steps at most, as long as something is due.
func (w *stepWorld) take(t *testing.T, tr *Tracker, steps int) {
	limit := w.limit()
	for n := range steps {
		owing := tr.namespaces["shop"] != nil && tr.namespaces["shop"].waits(w.now)
		w.owed = owing
		d := tr.Take()
		next := maps.Clone(w.served)
		for id, p := range next {
			if d.Leaving[ServiceID{id.Namespace, id.Service}] {
				next[id] = p.leaving()
			}
		}
		maps.Copy(next, byPort(d.Changed))
		for id := range d.Removed {
			delete(next, id)
		}
		w.note("a step: %d ports change, %d go, the next is due at %v", len(d.Changed), len(d.Removed), d.Due)
		w.checkStep(t, next, owing)
		w.checkGiveWay(t, next)
		w.checkSize(t, next)
		if t.Failed() {
			for id := range next {
				if w.served[id] != next[id] {
					w.note("%v:\n had  %+v\n is   %+v\n want %+v", id, w.served[id], next[id], w.want[id])
				}
			}
		}
		w.served = next
		if d.Due.IsZero() {
			comparePorts(t, next, w.want)
			return
		}
		if d.Due.After(w.now) {
			w.checkGone(t)
			return
		}
		if n > limit {
			t.Errorf("%d steps and no end", n)
		}
		if t.Failed() {
			return
		}
	}
}

// limit is more steps than any change may take.
func (w *stepWorld) limit() int {
	n := 20
	for _, ports := range []map[PortID]*ServicePort{w.served, w.want} {
		for _, p := range ports {
			n += 4 + 4*p.size()/mostWork + 4*len(p.Serving) // an endpoint with many slots may be a step
		}
	}
	return n
}

// sameService reports whether two values of a port are one port for clients; either may be nil.
func sameService(p, q *ServicePort) bool {
	return p != nil && q != nil && p.UID == q.UID && p.ClusterIP == q.ClusterIP && p.Port == q.Port
}

// choices returns the endpoints that each kind of client may get, and whether the policy Local is in force for it.
func choices(p *ServicePort) (lists map[string][]netip.AddrPort, local map[string]bool) {
	here := p.Local
	if p.Settings.LocalFallback && len(here) == 0 {
		here = p.Cluster
	}
	lists, local = map[string][]netip.AddrPort{"cluster IP": p.Cluster}, map[string]bool{"cluster IP": p.InternalLocal}
	if p.InternalLocal {
		lists["cluster IP"] = here
	}
	if p.External() {
		lists["outside"], lists["inside"], local["outside"] = p.Cluster, p.Cluster, p.ExternalLocal
		if p.ExternalLocal {
			lists["outside"] = here
		}
	}
	return lists, local
}

// addresses returns the addresses at which a port is served beside its cluster IP, and its node port.
func addresses(p *ServicePort) (list []string) {
	for _, addr := range slices.Concat(p.LoadBalancers, p.ExternalIPs) {
		list = append(list, addr.String())
	}
	if p.NodePort != 0 {
		list = append(list, fmt.Sprint(p.NodePort))
	}
	return list
}

func has[T comparable](list []T) func(T) bool {
	return func(x T) bool { return slices.Contains(list, x) }
}

// extra returns what a list has beside others.
func extra[T comparable](list []T, others ...[]T) []T {
	return slices.DeleteFunc(slices.Clone(list), has(slices.Concat(others...)))
}

// come counts the addresses of a list that an earlier one does not have.
func come(earlier, now []netip.AddrPort) int {
	addrs := func(list []netip.AddrPort) (addrs []netip.Addr) {
		for _, ep := range list {
			addrs = append(addrs, ep.Addr())
		}
		return addrs
	}
	return len(extra(addrs(now), addrs(earlier)))
}

// checkStep looks at the step from what is served to next.
func (w *stepWorld) checkStep(t *testing.T, next map[PortID]*ServicePort, owing bool) {
	for id, now := range next {
		had, want := w.served[id], w.want[id]
		if now == had { // it has not had its turn
			continue
		}
		if !sameService(now, had) {
			had = &ServicePort{PortSpec: &PortSpec{}, Lists: noLists}
			if owing {
				t.Errorf("%v: comes while its namespace owes", id)
			}
		}
		if !sameService(now, want) {
			want = &ServicePort{PortSpec: &PortSpec{}, Lists: noLists}
			if !now.Leaving {
				t.Errorf("%v: is not wanted, and does not give way", id)
			}
		}
		now, had, want = now.withPorts(), had.withPorts(), want.withPorts()
		if more := extra(addresses(now), addresses(had), addresses(want)); len(more) > 0 {
			t.Errorf("%v: served at %v again", id, more)
		}
		more := extra(now.LoadBalancers, now.GivenUp, want.LoadBalancers, want.ExternalIPs)
		if len(more) > 0 && want.UID != "" {
			t.Errorf("%v: does not give up %v", id, more)
		}
		serving := slices.Concat(now.Cluster, now.Local)
		cluster, local := want.mayServe() // its own lists, if it has them
		if more := extra(serving, had.Cluster, had.Local, cluster, local); len(more) > 0 {
			t.Errorf("%v: %v serve again", id, more)
		}
		if more := extra(serving, now.Serving); len(more) > 0 {
			t.Errorf("%v: %v serve but do not belong to the port", id, more)
		}
		if more := extra(now.Serving, had.Serving, want.Serving); len(more) > 0 {
			t.Errorf("%v: %v belong to the port again", id, more)
		}
		here := slices.DeleteFunc(slices.Clone(serving), func(ep netip.AddrPort) bool { return !onNodeA(ep) })
		if len(extra(here, now.OnNode))+len(extra(now.OnNode, here)) > 0 {
			t.Errorf("%v: on this node are %v, of %v", id, now.OnNode, serving)
		}
		if len(extra(now.Local, here)) > 0 {
			t.Errorf("%v: %v are not all on this node", id, now.Local)
		}
		if owing {
			if more := extra(addresses(now), addresses(had)); len(more) > 0 {
				t.Errorf("%v: served at %v, while its namespace owes", id, more)
			}
			if more := max(come(had.Cluster, now.Cluster), come(had.Local, now.Local)); more > replacements {
				t.Errorf("%v: %d endpoints come while its namespace owes", id, more)
			}
		}
		w.checkChoices(t, now, had, want)
		w.checkSources(t, now, had, want)
	}
	for id, had := range w.served {
		if want := w.want[id]; sameService(had, want) && next[id] == nil {
			t.Errorf("%v: is not served in between", id)
		}
	}
}

// checkChoices checks that clients find an endpoint now if they did and will.
func (w *stepWorld) checkChoices(t *testing.T, now, had, want *ServicePort) {
	if had.UID == "" || want.UID == "" {
		return
	}
	before, _ := choices(had)
	after, _ := choices(want)
	lists, local := choices(now)
	for kind, list := range lists {
		if local[kind] && !now.Settings.LocalFallback &&
			!slices.ContainsFunc(slices.Concat(want.Cluster, want.Local), onNodeA) {
			continue // the policy may have changed, and waits
		}
		if len(list) == 0 && len(before[kind]) > 0 && len(after[kind]) > 0 {
			t.Errorf("%v, %s: no endpoint between %v and %v", now.ID, kind, before[kind], after[kind])
		}
	}
}

// checkSources checks that each client is admitted that was and will be, and none that was not and will not be.
func (w *stepWorld) checkSources(t *testing.T, now, had, want *ServicePort) {
	if len(now.LoadBalancers) == 0 || len(had.LoadBalancers) == 0 || want.UID == "" {
		return
	}
	for id, p := range w.served { // the ranges belong to the Service: the port gets those that are in force
		if id.Service == now.ID.Service && p.HasSourceRanges && !had.HasSourceRanges {
			return
		}
	}
	admits := func(p *ServicePort, addr netip.Addr) bool {
		return p.UID != "" && (!p.HasSourceRanges || Contain(p.Sources, addr))
	}
	for i := 8; i < 256; i += 16 {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		did, does, will := admits(had, addr), admits(now, addr), admits(want, addr)
		if did == will && does != did && (!did || len(want.LoadBalancers) > 0) {
			t.Errorf("%v: admits %v %v, before %v, afterwards %v", now.ID, addr, does, did, will)
		}
	}
}

// checkGone checks that what was deleted is gone, though the rest waits.
func (w *stepWorld) checkGone(t *testing.T) {
	for id, now := range w.served {
		want := w.want[id]
		if !sameService(now, want) {
			t.Errorf("%v: has been deleted, and is there", id)
			continue
		}
		now, want = now.withPorts(), want.withPorts()
		if more := extra(addresses(now), addresses(want)); len(more) > 0 || len(now.GivenUp) > 0 {
			t.Errorf("%v: still at %v", id, more)
		}
		cluster, local := want.mayServe()
		if more := append(extra(now.Cluster, cluster), extra(now.Local, local)...); len(more) > 0 {
			t.Errorf("%v: still has the endpoints %v", id, more)
		}
		for i := 8; want.HasSourceRanges && len(now.LoadBalancers) > 0 && i < 256; i += 16 {
			addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
			if !Contain(want.Sources, addr) && (!now.HasSourceRanges || Contain(now.Sources, addr)) {
				t.Errorf("%v: still admits %v", id, addr)
			}
		}
	}
}

// checkGiveWay checks that what is left of deleted Services gives way to others.
func (w *stepWorld) checkGiveWay(t *testing.T, next map[PortID]*ServicePort) {
	for id, p := range next {
		if w.services[objectName{"shop", id.Service}] == nil && !p.Leaving {
			t.Errorf("%v: has been deleted, and does not give way", id)
		}
	}
}

// checkSize checks that a step is not large. What ports share counts once.
func (w *stepWorld) checkSize(t *testing.T, next map[PortID]*ServicePort) {
	n, known := 0, make(map[[2]listID]bool)
	all := maps.Clone(w.served)
	maps.Copy(all, next)
	for id := range all {
		had, now := w.served[id], next[id]
		if had == now {
			continue
		}
		for _, p := range []*ServicePort{had, now} {
			if p != nil && (p.hashes() || p.ClusterWeights != nil || p.LocalWeights != nil) {
				return // places and slots of a port are written at once
			}
		}
		key := [2]listID{had.listID(), now.listID()}
		if known[key] {
			had, now = withoutLists(had), withoutLists(now)
		}
		known[key] = true
		n += writes(had, now)
	}
	if n > 2*mostWork && mostWork == CommitElements {
		t.Errorf("a step has %d elements", n)
	}
}

// withoutLists returns a port without its endpoints; it may be nil.
func withoutLists(p *ServicePort) *ServicePort {
	if p == nil {
		return nil
	}
	return p.withListsOf(&ServicePort{PortSpec: &PortSpec{}, Lists: noLists}, 0)
}
