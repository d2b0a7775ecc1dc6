package sync

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// A loudWorld is what a namespace has, and how it changes all the time.
type loudWorld struct {
	name   string
	begin  func(t *testing.T, w *loudCluster)
	change func(t *testing.T, w *loudCluster, i int)
	twin   friendlyTwin
}

// A friendlyTwin has as many frontends and endpoints as a loudWorld, and as many of them change, but in Services with
// one port, each in a namespace of its own.
type friendlyTwin struct {
	services, endpoints int
	others              int // endpoints of each Service that become others in a round; 0: all go, and come back
	edit                func(s *corev1.Service, e *discoveryv1.EndpointSlice, i int)
}

// change writes all Services of the twin as they are in a round.
func (f *friendlyTwin) change(t *testing.T, c *loudCluster, i int) {
	t.Helper()
	for n := range f.services {
		service := lab.Service(fmt.Sprint("friend", n), "web", lab.After(netip.MustParseAddr("10.97.0.1"), n))
		first := lab.After(netip.MustParseAddr("10.128.0.0"), n*(f.endpoints+f.others))
		endpoints := lab.Addresses(first, f.endpoints+f.others)
		slice := lab.Slice(service.Namespace, "web", 0, corev1.IPv4Protocol, endpoints[i%2*f.others:][:f.endpoints])
		if f.others == 0 {
			setReady(slice, i%2 == 0)
		}
		if f.edit != nil {
			f.edit(service, slice, i)
		}
		must(t, c.SetService(service))
		must(t, c.SetSlice(slice))
	}
}

// A loudCluster is where a loudWorld lives.
type loudCluster struct {
	*tracker.Tracker
	kernel  *kernel.Client
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
	most    int           // elements of a commit
	tracked time.Duration // CPU time of the tracker's share
}

func (c *loudCluster) SetService(s *corev1.Service) error {
	began := ThreadTime()
	defer func() { c.tracked += ThreadTime() - began }()
	return c.Tracker.SetService(s)
}

func (c *loudCluster) SetSlice(s *discoveryv1.EndpointSlice) error {
	began := ThreadTime()
	defer func() { c.tracked += ThreadTime() - began }()
	return c.Tracker.SetSlice(s)
}

// set writes the Service and its slices.
func (c *loudCluster) set(t *testing.T) {
	t.Helper()
	must(t, c.SetService(c.service.DeepCopy()))
	for _, s := range c.slices {
		must(t, c.SetSlice(s.DeepCopy()))
	}
}

// ofPorts gives the Service so many ports, and slices with these endpoints.
func (c *loudCluster) ofPorts(ports, slices int, endpoints []netip.Addr) {
	c.service = lab.Service("loud", "web", netip.MustParseAddr("10.96.1.2"))
	c.service.Spec.Ports, c.slices = nil, nil
	var served []discoveryv1.EndpointPort
	for i := range ports {
		name, target := fmt.Sprint("p", i), int32(2000+i)
		c.service.Spec.Ports = append(c.service.Spec.Ports,
			corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: int32(1000 + i)})
		served = append(served, discoveryv1.EndpointPort{Name: &name, Protocol: new(corev1.ProtocolTCP), Port: &target})
	}
	for i := range slices {
		s := lab.Slice("loud", "web", i, corev1.IPv4Protocol, endpoints)
		s.Ports = served
		c.slices = append(c.slices, s)
	}
}

// flip writes a slice that has 100 endpoints more, and others each time.
func (c *loudCluster) flip(t *testing.T, i int) {
	t.Helper()
	s := c.slices[0].DeepCopy()
	for _, addr := range lab.Addresses(netip.AddrFrom4([4]byte{10, 7, byte(i % 2), 0}), 100) {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}})
	}
	must(t, c.SetSlice(s))
}

// ofServices writes Services with two endpoints each, edited.
func (c *loudCluster) ofServices(t *testing.T, n int, edit func(*corev1.Service, *discoveryv1.EndpointSlice)) {
	t.Helper()
	for i := range n {
		name := fmt.Sprint("s", i)
		service := lab.Service("loud", name, lab.After(netip.MustParseAddr("10.97.0.1"), i))
		slice := lab.Slice("loud", name, 0, corev1.IPv4Protocol, lab.Addresses(netip.MustParseAddr("10.8.0.1"), 2))
		if edit != nil {
			edit(service, slice)
		}
		must(t, c.SetService(service))
		must(t, c.SetSlice(slice))
	}
}

func withFirst(addr netip.Addr, first byte) netip.Addr {
	b := addr.As4()
	b[0] = first
	return netip.AddrFrom4(b)
}

func setReady(s *discoveryv1.EndpointSlice, ready bool) {
	for i := range s.Endpoints {
		s.Endpoints[i].Conditions.Ready = &ready
	}
}

// fill fills the affinity map of the namespace with entries, as clients do.
func (c *loudCluster) fill(t *testing.T, entries int) {
	t.Helper()
	have, _, err := c.kernel.Read(t.Context())
	must(t, err)
	life := &nft.Life{Timeout: time.Hour, Expires: time.Hour}
	for name, set := range have[nft.IP].Sets {
		if !set.Set.Dynamic {
			continue
		}
		for part := range slices.Chunk(lab.Addresses(netip.MustParseAddr("20.0.0.0"), entries), 10_000) {
			op := nft.Op{Verb: nft.Add, Family: nft.IP, Set: set.Set}
			for _, client := range part {
				key := nft.NumberedKey(nft.IP, 2*layout.AffinityMaps, client)
				op.Elements = append(op.Elements,
					nft.KeyedElement{Key: key, Element: nft.Element{Data: nft.AddrKey(client), Life: life}})
			}
			must(t, c.kernel.Commit(t.Context(), nft.Batch{Ops: []nft.Op{op}}))
		}
		t.Logf("%d entries in %s", entries, name)
	}
}

// TestNeighbourOfLoudWorlds: beside a namespace that changes all the time, a neighbour's change comes with a small
// commit.
func TestNeighbourOfLoudWorlds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes, and more with the race detector")
	}
	thousand := lab.Addresses(netip.MustParseAddr("10.8.0.1"), 1000)
	var quiet roundTime
	for _, w := range []loudWorld{
		{"quiet", func(*testing.T, *loudCluster) {}, func(*testing.T, *loudCluster, int) {}, friendlyTwin{}},
		{"300 slices of one port", func(t *testing.T, c *loudCluster) {
			c.ofPorts(1, 300, thousand)
			c.set(t)
		}, func(t *testing.T, c *loudCluster, i int) { c.flip(t, i) }, friendlyTwin{1, 1000, 100, nil}},
		{"40 ports, 100 slices with the same endpoints", func(t *testing.T, c *loudCluster) {
			c.ofPorts(40, 100, thousand)
			c.set(t)
		}, func(t *testing.T, c *loudCluster, i int) { c.flip(t, i) }, friendlyTwin{40, 25, 3, nil}},
		{"20,000 source ranges", func(t *testing.T, c *loudCluster) {
			c.ofPorts(1, 1, thousand[:1])
			c.service.Spec.Type = corev1.ServiceTypeLoadBalancer
			c.service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
			c.set(t)
		}, func(t *testing.T, c *loudCluster, i int) {
			c.service.Spec.LoadBalancerSourceRanges = nil
			for _, addr := range lab.Addresses(netip.AddrFrom4([4]byte{20, byte(i % 2), 0, 0}), 20_000) {
				c.service.Spec.LoadBalancerSourceRanges = append(c.service.Spec.LoadBalancerSourceRanges,
					netip.PrefixFrom(lab.After(addr, int(addr.As4()[2])<<8+int(addr.As4()[3])), 32).String())
			}
			c.set(t)
		}, friendlyTwin{1000, 1, 0, func(s *corev1.Service, e *discoveryv1.EndpointSlice, i int) {
			setReady(e, true)
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			ip, _ := netip.ParseAddr(s.Spec.ClusterIP)
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: withFirst(ip, 198).String()}}
			for _, addr := range lab.Addresses(netip.AddrFrom4([4]byte{20, byte(i % 2), 0, 0}), 20) {
				s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, netip.PrefixFrom(addr, 32).String())
			}
		}}},
		{"60 Maglev Services get other endpoints", func(t *testing.T, c *loudCluster) {
			c.ofServices(t, 60, nil)
			c.most = 4 * tracker.CommitElements // with a slot table of one endpoint between two others
		}, func(t *testing.T, c *loudCluster, i int) {
			c.ofServices(t, 60, func(s *corev1.Service, e *discoveryv1.EndpointSlice) {
				s.Annotations = map[string]string{tracker.AnnotationPrefix + "lb-algorithm": "maglev"}
				*e = *lab.Slice("loud", s.Name, 0, corev1.IPv4Protocol, thousand[i%2*100:][:20])
			})
		}, friendlyTwin{60, 20, 20, nil}},
		{"20 Maglev load balancers get other endpoints", func(t *testing.T, c *loudCluster) {
			c.most = 5 * tracker.CommitElements // slots of endpoints that leave name others at once
		}, func(t *testing.T, c *loudCluster, i int) {
			c.ofServices(t, 20, func(s *corev1.Service, e *discoveryv1.EndpointSlice) {
				number, _ := strconv.Atoi(s.Name[1:])
				s.Annotations = map[string]string{tracker.AnnotationPrefix + "lb-algorithm": "maglev"}
				s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
				s.Spec.Ports[0].NodePort, s.Spec.HealthCheckNodePort = int32(30000+number), int32(31000+number)
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprint("198.51.100.", number)}}
				*e = *lab.Slice("loud", s.Name, 0, corev1.IPv4Protocol, thousand[i%2*100:][:40])
				for j := range e.Endpoints {
					if j%3 > 0 {
						e.Endpoints[j].NodeName = new("node")
					}
				}
			})
		}, friendlyTwin{20, 40, 40, nil}},
		{"8 Maglev Services pass 320 endpoints", nil, func(t *testing.T, c *loudCluster, i int) {
			c.ofServices(t, 8, func(s *corev1.Service, e *discoveryv1.EndpointSlice) {
				s.Annotations = map[string]string{tracker.AnnotationPrefix + "lb-algorithm": "maglev"}
				*e = *lab.Slice("loud", s.Name, 0, corev1.IPv4Protocol, thousand[:320+i%2])
			})
		}, friendlyTwin{8, 320, 1, nil}},
		{"500 ports with 500 endpoints come and go", func(t *testing.T, c *loudCluster) {
			c.ofPorts(500, 1, thousand[:500])
		}, func(t *testing.T, c *loudCluster, i int) {
			setReady(c.slices[0], i%2 == 0)
			c.set(t)
		}, friendlyTwin{500, 1, 0, nil}},
		{"a new name each time", nil, func(t *testing.T, c *loudCluster, i int) {
			if i > 1 {
				c.DeleteService("loud", fmt.Sprint("s", i-1))
			}
			s := lab.Service("loud", fmt.Sprint("s", i), netip.MustParseAddr("10.96.1.3"))
			s.Annotations = map[string]string{tracker.AnnotationPrefix + "lb-algorithm": "maglev"}
			must(t, c.SetService(s))
			must(t, c.SetSlice(lab.Slice("loud", s.Name, 0, corev1.IPv4Protocol, thousand[:320])))
		}, friendlyTwin{1, 320, 320, nil}},
		{"1,000 Services lose and get their endpoints", func(t *testing.T, c *loudCluster) {
			c.ofServices(t, 1000, nil)
		}, func(t *testing.T, c *loudCluster, i int) {
			c.ofServices(t, 1000, func(_ *corev1.Service, e *discoveryv1.EndpointSlice) { setReady(e, i%2 == 0) })
		}, friendlyTwin{1000, 2, 0, nil}},
		{"100 ports at 100 addresses lose and get their endpoints", func(t *testing.T, c *loudCluster) {
			c.ofPorts(100, 1, thousand[:2])
			for _, addr := range lab.Addresses(netip.MustParseAddr("198.51.100.1"), 100) {
				c.service.Spec.ExternalIPs = append(c.service.Spec.ExternalIPs, addr.String())
			}
			c.set(t)
		}, func(t *testing.T, c *loudCluster, i int) {
			setReady(c.slices[0], i%2 == 0)
			c.set(t)
		}, friendlyTwin{10_100, 2, 0, nil}},
		{"100 ports leave the list that they share, and come back", func(t *testing.T, c *loudCluster) {
			c.ofPorts(100, 2, thousand[:100])
			c.set(t)
		}, func(t *testing.T, c *loudCluster, i int) {
			other := lab.Slice("loud", "web", 1, corev1.IPv4Protocol, thousand[100:101])
			other.Ports = slices.Clone(c.slices[0].Ports)
			for j := range other.Ports {
				other.Ports[j].Port = new(*other.Ports[j].Port + int32(i%2))
			}
			c.slices[1] = other
			c.set(t)
		}, friendlyTwin{100, 2, 1, nil}},
		{"5,000 endpoints on this node become others", func(*testing.T, *loudCluster) {},
			func(t *testing.T, c *loudCluster, i int) {
				c.ofPorts(1, 5, nil)
				for j, s := range c.slices {
					first := netip.AddrFrom4([4]byte{10, byte(10 + i%2), byte(4 * j), 1})
					s.Endpoints = lab.Slice("loud", "web", j, corev1.IPv4Protocol, lab.Addresses(first, 1000)).Endpoints
					for n := range s.Endpoints {
						s.Endpoints[n].NodeName = new("node")
					}
				}
				c.set(t)
			}, friendlyTwin{50, 100, 100, func(_ *corev1.Service, e *discoveryv1.EndpointSlice, _ int) {
				for n := range e.Endpoints {
					e.Endpoints[n].NodeName = new("node")
				}
			}}},
		{"200 sticky ports get other endpoints", func(t *testing.T, c *loudCluster) {
			c.ofPorts(200, 1, thousand[:200])
			c.service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			c.set(t)
		}, func(t *testing.T, c *loudCluster, i int) {
			c.slices[0].Endpoints = lab.Slice("loud", "web", 0, corev1.IPv4Protocol, thousand[i%2*200:][:200]).Endpoints
			c.set(t)
		}, friendlyTwin{200, 1, 1, func(s *corev1.Service, _ *discoveryv1.EndpointSlice, _ int) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}}},
		{"300 sticky ports with a full affinity map", func(t *testing.T, c *loudCluster) {
			sticky := lab.Service("loud", "sticky", netip.MustParseAddr("10.96.1.3"))
			sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			must(t, c.SetService(sticky))
			must(t, c.SetSlice(lab.Slice("loud", "sticky", 0, corev1.IPv4Protocol, thousand[:2])))
		}, func(t *testing.T, c *loudCluster, i int) {
			if i == 10 {
				c.fill(t, 100_000)
				c.ofPorts(300, 1, thousand[:2])
			}
			if i >= 10 && i%20 == 10 {
				c.service.Spec.SessionAffinity = []corev1.ServiceAffinity{"ClientIP", "None"}[i/20%2]
				c.set(t)
			}
		}, friendlyTwin{300, 1, 0, func(s *corev1.Service, e *discoveryv1.EndpointSlice, i int) {
			setReady(e, true)
			if i >= 10 {
				s.Spec.SessionAffinity = []corev1.ServiceAffinity{"ClientIP", "None"}[(i-10)/20%2]
			}
		}}},
		{"an endpoint of 300 sticky ports is replaced, with a full affinity map", func(t *testing.T, c *loudCluster) {
			c.ofPorts(300, 1, thousand[:300])
			c.service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			c.set(t)
		}, func(t *testing.T, c *loudCluster, i int) {
			if i == 1 {
				c.fill(t, 100_000)
			}
			c.slices[0].Endpoints[0].Addresses[0] = thousand[300+i%2].String()
			c.set(t)
		}, friendlyTwin{300, 1, 1, func(s *corev1.Service, _ *discoveryv1.EndpointSlice, _ int) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}}},
		{"one of 3 endpoints of 10,000 ports is replaced", func(t *testing.T, c *loudCluster) {
			c.ofPorts(10_000, 1, thousand[:3])
			c.set(t)
		}, func(t *testing.T, c *loudCluster, i int) {
			c.slices[0].Endpoints[0].Addresses[0] = thousand[3+i%2].String()
			must(t, c.SetSlice(c.slices[0].DeepCopy()))
		}, friendlyTwin{10_000, 3, 1, nil}},
		{"one of 3 endpoints of 4,000 sticky ports is replaced", func(t *testing.T, c *loudCluster) {
			c.ofPorts(4000, 1, thousand[:3])
			c.service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			c.set(t)
		}, func(t *testing.T, c *loudCluster, i int) {
			c.slices[0].Endpoints[0].Addresses[0] = thousand[3+i%2].String()
			must(t, c.SetSlice(c.slices[0].DeepCopy()))
		}, friendlyTwin{}},
		{"session affinity of 10,000 endpoints comes and goes", func(t *testing.T, c *loudCluster) {
			c.ofPorts(2, 10, nil)
			for j, s := range c.slices {
				first := netip.AddrFrom4([4]byte{10, 10, byte(4 * j), 1})
				s.Endpoints = lab.Slice("loud", "web", j, corev1.IPv4Protocol, lab.Addresses(first, 1000)).Endpoints
			}
			c.set(t)
		}, func(t *testing.T, c *loudCluster, i int) {
			c.service.Spec.SessionAffinity = corev1.ServiceAffinityNone
			if i%2 == 1 {
				c.service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			}
			must(t, c.SetService(c.service.DeepCopy()))
		}, friendlyTwin{}},
	} {
		t.Run(w.name, func(t *testing.T) { testLoudWorld(t, w, &quiet) })
	}
}

// A roundTime is the CPU time of a round.
type roundTime struct {
	all     time.Duration // tracker, loop and kernel
	commits time.Duration // the kernel's work, and the encoding of batches
}

// testLoudWorld compares a world with its twin: what a round takes above that of the first world, which is quiet.
func testLoudWorld(t *testing.T, w loudWorld, quiet *roundTime) {
	// Each is a test of its own, so that the first one's loop ends before the second one is measured.
	var loud, friend roundTime
	t.Run("loud", func(t *testing.T) { loud = testNeighbourOfLoudWorld(t, w, 100) })
	if w.twin.services == 0 {
		*quiet = loud
		return
	}
	rounds := min(100, max(10, 20_000/w.twin.services))
	t.Run("twin", func(t *testing.T) {
		friend = testNeighbourOfLoudWorld(t, loudWorld{change: w.twin.change}, rounds)
	})
	twin := float64(friend.all - quiet.all)
	t.Logf("CPU time of a round: %v, %.2f times that of the friendly twin; its commits alone: %v, %.2f times", loud.all,
		float64(loud.all-quiet.all)/twin, loud.commits, float64(loud.commits-quiet.commits)/twin)
}

// testNeighbourOfLoudWorld returns the CPU time of a round.
func testNeighbourOfLoudWorld(t *testing.T, w loudWorld, rounds int) roundTime {
	lab.New(t)
	tr, queue := tracker.New(tracker.Config{NodeName: "node"}), NewQueue()
	calm := func(i int) {
		endpoint := []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 0, byte(i)})}
		must(t, tr.SetService(lab.Service("calm", "web", netip.MustParseAddr("10.96.1.1"))))
		must(t, tr.SetSlice(lab.Slice("calm", "web", 0, corev1.IPv4Protocol, endpoint)))
		queue.Notify()
	}
	calm(0)
	c := &loudCluster{Tracker: tr, kernel: lab.Open(t, kernel.Open), most: mostElements}
	if w.begin != nil {
		w.begin(t, c)
	}
	ruleset := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 131072})
	k := &timed{Client: lab.Open(t, kernel.Open), before: func() {}}
	reports := make(chan Report, 10_000)
	runLoop(t, New(tr, ruleset, k, Options{Log: zap.NewNop(), Queue: queue, MinInterval: time.Millisecond,
		Charge: tr.Charge, Hold: tr.Hold, Committed: func(r Report) { reports <- r }}))
	<-reports
	k.take() // the start
	frontend := tracker.Frontend{Address: netip.MustParseAddr("10.96.1.1"), Protocol: tracker.TCP, Port: lab.ServicePort}
	endpoints := ruleset.Want()[nft.IP].Sets[layout.EndpointsMapOf(frontend, false)].Set
	first := nft.IndexedKey(layout.FrontendKeyOf(frontend), 0)
	process, thread := cputime(t, unix.CLOCK_PROCESS_CPUTIME_ID), ThreadTime()
	c.tracked = 0
	var waits []time.Duration
	for i := 1; i <= rounds; i++ {
		w.change(t, c, i)
		time.Sleep(5 * time.Millisecond)
		came := time.Now()
		calm(i)
		for at := false; !at; {
			r := <-reports
			for _, p := range r.Delta.Changed {
				at = at || p.ID.Namespace == "calm"
			}
		}
		for deadline := time.Now().Add(time.Minute); ; {
			if e, _, err := c.kernel.Lookup(t.Context(), nft.IP, endpoints, first); err != nil || time.Now().After(deadline) {
				t.Fatal(e, err)
			} else if strings.HasPrefix(e.Data, nft.AddrKey(netip.AddrFrom4([4]byte{10, 9, 0, byte(i)}))) {
				break
			}
		}
		waits = append(waits, time.Since(came))
	}
	// Without what the test itself has taken on its thread, which lab.New has locked.
	took := cputime(t, unix.CLOCK_PROCESS_CPUTIME_ID) - process - (ThreadTime() - thread) + c.tracked
	m := k.take()
	slices.Sort(waits)
	t.Logf("a neighbour waits %v in the median, %v in 9 of 10, %v at most; the longest of %d commits took %v, "+
		"the largest had %d elements; a round takes %v of CPU time", waits[rounds/2], waits[rounds*9/10], waits[rounds-1],
		m.commits, m.longest, m.elements, took/time.Duration(rounds))
	if m.lookups > 2 { // for each the kernel goes through the affinity map
		t.Errorf("a commit writes %d rules that look up an affinity map", m.lookups)
	}
	if m.elements > c.most {
		t.Errorf("a commit has %d elements", m.elements)
	}
	return roundTime{took / time.Duration(rounds), m.cpu / time.Duration(rounds)}
}

func cputime(t *testing.T, clock int32) time.Duration {
	t.Helper()
	var at unix.Timespec
	must(t, unix.ClockGettime(clock, &at))
	return time.Duration(at.Nano())
}
