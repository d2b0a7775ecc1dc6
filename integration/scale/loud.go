package main

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
)

// loud is the namespace of a tenant whose objects change all the time. The neighbour is in another one.
const loud = "loud"

// lateBy is how much longer a change of the neighbour may take beside a loud tenant than in a quiet cluster.
const lateBy = 50 * time.Millisecond

// A tenant is what a namespace has, and how it changes so many times a second.
type tenant struct {
	name   string
	rate   int
	begin  func(*apiserver.Server)
	change func(server *apiserver.Server, n int)
	twin   friends
}

// Friends have as many frontends and endpoints as a tenant, and as many of them change, but in Services with one port,
// each in a namespace of its own. A Service has two ranges of its endpoints in turns; if they are the same, it is
// deleted and created.
type friends struct {
	services   int
	one, other [2]int
	edits      []edit
}

// change changes Service i for the nth time; at first it has the other range.
func (f *friends) change(server *apiserver.Server, i, n int) {
	s := newService("web", clusterIP(i))
	s.Namespace = fmt.Sprint("friend-", i)
	for _, edit := range f.edits {
		edit(i, s)
	}
	used := [][2]int{f.other, f.one}[n%2]
	endpoints := size{f.services, max(f.one[1], f.other[1])}.endpointsOf(i)
	slice := newSlice(s.Name, 0, endpoints[used[0]:used[1]])
	slice.Namespace = s.Namespace
	switch {
	case n == 0:
		server.Apply(s, slice)
	case f.one != f.other:
		server.Apply(slice)
	case n%2 == 1:
		server.Delete("Service", s.Namespace, s.Name)
	default:
		server.Apply(s)
	}
}

// scene returns the scene in which all friends change one after another, at most so many times a second, and how
// many times a second each does: the API server can make some thousands of changes.
func (f *friends) scene(rate int) (s *scene, each float64) {
	const most = 5000
	burst := min(f.services, most/5)
	bursts := (f.services + burst - 1) / burst
	fill := func(server *apiserver.Server) {
		for i := range f.services {
			f.change(server, i, 0)
		}
	}
	s = &scene{world: world{fill: fill, last: netip.AddrPortFrom(clusterIP(f.services-1), lab.ServicePort)},
		rate: min(rate*bursts, most/burst)}
	s.happen = func(l *live, n int) {
		for i := n % bursts * burst; i < min(f.services, (n%bursts+1)*burst); i++ {
			f.change(l.server, i, 1+n/bursts)
		}
	}
	return s, float64(s.rate) / float64(bursts)
}

// loudService returns a Service of a loud tenant with so many ports of TCP.
func loudService(name string, i, ports int, edits ...edit) *corev1.Service {
	s := newService(name, clusterIP(i))
	s.Namespace, s.Spec.Ports = loud, slices.Repeat(s.Spec.Ports, ports)
	for n := range s.Spec.Ports {
		p := &s.Spec.Ports[n]
		p.Name, p.Port, p.TargetPort.IntVal = fmt.Sprint("p", n), int32(1000+n), int32(20_000+n)
	}
	for _, edit := range edits {
		edit(i, s)
	}
	return s
}

// loudSlice returns slice number part of a Service of a loud tenant.
func loudSlice(s *corev1.Service, part int, addrs []netip.Addr) *discoveryv1.EndpointSlice {
	slice := sliceOf(s, part, addrs)
	slice.Namespace = loud
	return slice
}

// turns is a tenant with one Service whose slice is one and the other in turns.
func turns(name string, rate int, s *corev1.Service, one, other *discoveryv1.EndpointSlice, twin friends) tenant {
	change := func(server *apiserver.Server, n int) { server.Apply([]*discoveryv1.EndpointSlice{one, other}[n%2]) }
	return tenant{name, rate, func(server *apiserver.Server) { server.Apply(s, other) }, change, twin}
}

// tenants are those that are measured. Their names say how large they are where the share is 1.
func (o *options) tenants() []tenant {
	endpoints := lab.Addresses(lab.After(firstEndpoint, 1), 1000)
	ports, some := o.part(10_000), o.part(1000)
	many, sticky := loudService("many", 0, ports), loudService("many", 0, ports, affine)
	few := loudService("few", 0, o.part(300), affine)
	half := loudService("half", 0, o.part(500))
	leave := func(name string, ports, addrs int) tenant {
		s := loudService("shared", 0, o.part(ports))
		joint, apart := loudSlice(s, 0, endpoints[:o.part(addrs)]), loudSlice(s, 1, endpoints[addrs:addrs+1])
		leaving := apart.DeepCopy()
		for i := range leaving.Ports {
			leaving.Ports[i].Port = new(*leaving.Ports[i].Port + 1)
		}
		t := turns(name, 20, s, leaving, apart, friends{o.part(ports), [2]int{0, 2}, [2]int{1, 3}, nil})
		t.begin = func(server *apiserver.Server) { server.Apply(s, joint, apart) }
		return t
	}
	maglev := func(server *apiserver.Server, n int) {
		for i := range o.part(8) {
			s := loudService(fmt.Sprint("maglev-", i), i, 1, hashed)
			server.Apply(s, loudSlice(s, 0, endpoints[:320+n%2]))
		}
	}
	fresh := func(server *apiserver.Server, n int) {
		server.Delete("Service", loud, fmt.Sprint("fresh-", n-1))
		s := loudService(fmt.Sprint("fresh-", n), 0, 1, hashed)
		server.Apply(s, loudSlice(s, 0, endpoints[:320]))
	}
	flap := func(server *apiserver.Server, n int) {
		for i := range some {
			s := loudService(fmt.Sprint("flap-", i), i, 1)
			if n == 0 {
				server.Apply(s)
			}
			server.Apply(loudSlice(s, 0, endpoints[:n%2*2]))
		}
	}
	gone, three, replaced := [2]int{}, [2]int{0, 3}, [2]int{1, 4}
	first := func(change func(*apiserver.Server, int)) func(*apiserver.Server) {
		return func(server *apiserver.Server) { change(server, 0) }
	}
	return []tenant{
		turns("one of 3 endpoints of 10,000 ports is replaced", 20, many, loudSlice(many, 0, endpoints[:3]),
			loudSlice(many, 0, endpoints[1:4]), friends{ports, three, replaced, nil}),
		turns("the endpoints of 10,000 ports come and go", 20, many, loudSlice(many, 0, nil),
			loudSlice(many, 0, endpoints[:3]), friends{ports, gone, three, nil}),
		turns("one of 3 endpoints of 10,000 ports with affinity is replaced", 20, sticky,
			loudSlice(sticky, 0, endpoints[:3]), loudSlice(sticky, 0, endpoints[1:4]),
			friends{ports, three, replaced, []edit{affine}}),
		{"10,000 ports are deleted and created", 4, func(server *apiserver.Server) {
			server.Apply(many, loudSlice(many, 0, endpoints[:3]))
		}, func(server *apiserver.Server, n int) {
			if n%2 == 0 {
				server.Delete("Service", loud, many.Name)
			} else {
				server.Apply(many)
			}
		}, friends{ports, three, three, nil}},
		turns("300 ports with affinity have 1 and 5 endpoints", 20, few, loudSlice(few, 0, endpoints[:1]),
			loudSlice(few, 0, endpoints[:5]), friends{o.part(300), [2]int{0, 1}, [2]int{0, 5}, []edit{affine}}),
		turns("500 endpoints of 500 ports come and go", 10, half, loudSlice(half, 0, nil),
			loudSlice(half, 0, endpoints[:500]), friends{o.part(500), gone, [2]int{0, 1}, nil}),
		leave("100 ports leave the list that they share, and come back", 100, 100),
		leave("500 ports leave their list of 500 endpoints, and come back", 500, 500),
		{"8 Services with Maglev have 320 and 321 endpoints", 20, first(maglev), maglev,
			friends{o.part(8), [2]int{0, 320}, [2]int{0, 321}, []edit{hashed}}},
		{"3 new Services with Maglev a second", 3, first(fresh), fresh,
			friends{1, [2]int{0, 320}, [2]int{320, 640}, []edit{hashed}}},
		{"1,000 Services lose and get their endpoints", 5, first(flap), flap, friends{some, gone, [2]int{0, 2}, nil}},
	}
}

// measureTenant notes how long changes of the neighbour take beside a loud tenant.
func (o *options) measureTenant(c *comparison, t tenant) error {
	w := world{fill: t.begin, last: netip.AddrPortFrom(neighbourIP, lab.ServicePort)}
	settle := func(*live) error { // the neighbour answers before a start is through
		time.Sleep(time.Duration(min(1, o.share) * float64(settling)))
		return nil
	}
	s := &scene{world: w, running: settle, rate: t.rate, happen: func(l *live, n int) { t.change(l.server, n+1) }}
	quiet, err := o.play(s.quiet(), o.churn/3, nil)
	if err != nil {
		return err
	}
	worst, err := o.play(s, o.churn, nil)
	if err != nil {
		return err
	}
	friendly, rate := t.twin.scene(t.rate)
	friendly.running = settle
	twin, err := o.play(friendly, o.churn/3, nil)
	if err != nil {
		return err
	}
	name := t.name + "; twin: nothing happens"
	c.lags(name, worst, quiet, bar{})
	c.add(name, "changes of the neighbour", count, float64(len(worst.lags)), float64(len(quiet.lags)), bar{})
	late := 0
	for _, lag := range worst.lags {
		if lag > quantile(quiet.lags, 0.5)+lateBy {
			late++
		}
	}
	c.add(name, fmt.Sprintf("of 1,000 changes of the neighbour, those that take %s longer than the twin's median", lateBy),
		count, 1000*float64(late)/float64(len(worst.lags)), nothing, most(10))
	c.add(name, "CPU time of kube-nft in a second", seconds, worst.busy, quiet.busy, bar{})
	c.add(t.name+"; twin: one-port Services in namespaces of their own", "CPU time of a change, above the quiet cluster's",
		seconds, (worst.busy-quiet.busy)/float64(t.rate), (twin.busy-quiet.busy)/rate, times(2))
	return nil
}
