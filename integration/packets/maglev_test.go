package packets

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// The hashed Service: its addresses by family, in both of which it has endpoints in two slices.
var (
	hashedClients  = [2]netip.Addr{netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8:113::2")}
	hashedBalancer = [2]netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:51::7")}
	hashedExternal = [2]netip.Addr{netip.MustParseAddr("198.51.100.8"), netip.MustParseAddr("2001:db8:51::8")}
)

const hashedNodePort = 30081

// hashedObjects returns the hashed Service with as many endpoints as n, in slices in one order or
// the other.
func hashedObjects(hash string, n int, backwards bool) []any {
	s := lab.Service("shop", "web", movingIP(0, 0), movingIP(0, 1))
	s.Annotations = map[string]string{"kube-nft.io/lb-algorithm": "maglev", "kube-nft.io/hash": hash}
	s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeLoadBalancer, hashedNodePort
	objects := []any{node, s}
	for family := range 2 {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, hashedExternal[family].String())
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: hashedBalancer[family].String()})
		hosts := lab.Addresses(movingHost(1, family), n)
		for part, list := range [][]netip.Addr{hosts[:n/2], hosts[n/2:]} {
			if list = slices.Clone(list); backwards {
				slices.Reverse(list)
			}
			slice := lab.Slice("shop", "web", part, lab.FamilyOf(hosts[0]), list)
			slice.Name = fmt.Sprintf("web-%d-%d", family, part)
			objects = append(objects, slice)
		}
	}
	if backwards {
		slices.Reverse(objects)
	}
	return objects
}

// A hashedClient is a client and its port.
type hashedClient struct {
	family int
	port   uint16
}

// TestNodesAgreeOnEndpoints: two nodes that hear of the same objects in another order, one of them over
// a detour, send a client to the same endpoint at every frontend; and so does a node on which a
// connection arrives that another one has begun.
func TestNodesAgreeOnEndpoints(t *testing.T) {
	lab.Require(t)
	for _, hash := range []string{"source-ip-port", "source-ip"} {
		var nodes [2]map[hashedClient]netip.AddrPort
		for i := range nodes {
			t.Run(fmt.Sprintf("%s, node %d", hash, i), func(t *testing.T) {
				b := newBench(t, nodeAddresses, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"),
					netip.MustParsePrefix("fd00:10:244::/48")})
				heard, objects := lab.ListenToNotices(t), lab.NewDirectory(t)
				const endpoints = 7
				first := endpoints
				if i == 1 {
					first = 12 // a node that knew more of them, and in another size of the table
				}
				objects.Write(t, "objects.yaml", lab.Manifest(append(hashedObjects(hash, first, i == 1), tickService("first"))...))
				p := objects.Start(t, "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48")
				t.Cleanup(func() { logOnFailure(t, p) })
				heard.Next(t, lab.About("shop/first:http"))
				objects.Write(t, "objects.yaml", lab.Manifest(append(hashedObjects(hash, endpoints, i == 1),
					tickService("second"))...))
				heard.Next(t, lab.About("shop/second:http"))
				lab.Eventually(t, "the slot table is complete", func() bool {
					diff, err := lab.Execute(append([]string{lab.Program(t), "diff", "--hostname-override", lab.NodeName,
						"--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"}, objects.Flags()...)...)
					return err == nil && diff.Code == 0
				})
				nodes[i] = hashedEndpoints(t, b)
				if i == 1 {
					midFlow(t, b, nodes[i])
				}
			})
		}
		if len(nodes[0]) == 0 || !maps.Equal(nodes[0], nodes[1]) {
			t.Errorf("%s: the nodes choose differently: %d and %d clients", hash, len(nodes[0]), len(nodes[1]))
		}
		reached := make(map[netip.AddrPort]int)
		for _, ep := range nodes[0] {
			reached[ep]++
		}
		if want := map[string]int{"source-ip-port": 14, "source-ip": 2}[hash]; len(reached) != want {
			t.Errorf("%s: %d endpoints of both families are reached, want %d", hash, len(reached), want)
		}
	}
}

// hashedEndpoints makes the same connections to every frontend, which have to reach the same endpoints.
func hashedEndpoints(t *testing.T, b *bench) map[hashedClient]netip.AddrPort {
	t.Helper()
	all := make(map[hashedClient]netip.AddrPort)
	for family := range 2 {
		for _, to := range []netip.AddrPort{
			netip.AddrPortFrom(movingIP(0, family), 80), netip.AddrPortFrom(hashedBalancer[family], 80),
			netip.AddrPortFrom(hashedExternal[family], 80), netip.AddrPortFrom(nodeAddresses[family], hashedNodePort),
		} {
			b.port = firstPort - 1
			outcomes, err := b.try(flow{From: hashedClients[family], Via: "external", Proto: "tcp", To: to}, 150)
			if err != nil {
				t.Fatal(err)
			}
			for sent, o := range outcomes {
				client := hashedClient{family, sent.src.Port()}
				if other, known := all[client]; o.result != delivered || known && other != o.endpoint {
					t.Errorf("%s: %s; %s at another frontend", sent, o, other)
				}
				all[client] = o.endpoint
			}
		}
	}
	return all
}

// midFlow sends packets of connections that another node has begun.
func midFlow(t *testing.T, b *bench, want map[hashedClient]netip.AddrPort) {
	t.Helper()
	flushTracked(t)
	for client := range want {
		to := netip.AddrPortFrom(movingIP(0, client.family), 80)
		sent := tuple{proto: protocols["tcp"], src: netip.AddrPortFrom(hashedClients[client.family], client.port), dst: to}
		if err := b.external.write(ipPacket(sent, tcpSegment(sent, 77, 88, tcpACK))); err != nil {
			t.Fatal(err)
		}
	}
	for family := range 2 {
		if _, err := b.settle("external", hashedClients[family]); err != nil {
			t.Fatal(err)
		}
	}
	tracked, err := readTracked()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for sent, translated := range tracked.translated {
		for family := range 2 {
			if sent.src.Addr() == hashedClients[family] && sent.proto == protocols["tcp"] {
				found++
				if ep := want[hashedClient{family, sent.src.Port()}]; translated.dst != ep {
					t.Errorf("a packet in the middle of %s goes to %s, want %s", sent, translated.dst, ep)
				}
			}
		}
	}
	if found != len(want) {
		t.Errorf("%d connections are picked up, want %d", found, len(want))
	}
}

// TestNoConnectionIsLostBetweenSlotTables: while slot tables of 4,001 and 8,009 slots follow one another, each new
// connection gets to an endpoint.
func TestNoConnectionIsLostBetweenSlotTables(t *testing.T) {
	b := newBench(t, nodeAddresses, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"),
		netip.MustParsePrefix("fd00:10:244::/48")})
	heard, objects := lab.ListenToNotices(t), lab.NewDirectory(t)
	show := func(n int, tick string) {
		list := append(hashedObjects("source-ip-port", n, false), tickService(tick))
		objects.Write(t, "objects.yaml", lab.Manifest(list...))
	}
	show(40, "first")
	p := objects.Start(t, "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48")
	t.Cleanup(func() { logOnFailure(t, p) })
	heard.Next(t, lab.About("shop/first:http"))
	const rounds, bursts, burst = 12, 3, 200
	removed := 0 // tables
	for family := range 2 {
		b.port = firstPort - 1
		hosts := lab.Addresses(movingHost(1, family), 42)
		for round := range rounds {
			show([]int{42, 40}[round%2], fmt.Sprint("round-", family, "-", round))
			for range bursts {
				outcomes, err := b.try(flow{From: hashedClients[family], Via: "external", Proto: "tcp",
					To: netip.AddrPortFrom(movingIP(0, family), 80)}, burst)
				if err != nil {
					t.Fatal(err)
				}
				for sent, o := range outcomes {
					if o.result != delivered || !slices.Contains(hosts, o.endpoint.Addr()) {
						t.Errorf("round %d: %s: %s", round, sent, o)
					}
				}
			}
			for _, n := range heard.Next(t, lab.About(fmt.Sprint("shop/round-", family, "-", round, ":http"))) {
				if strings.HasPrefix(n.String(), "delete set "+[]string{"ip", "ip6"}[family]+" slots-") {
					removed++
				}
			}
		}
	}
	if removed == 0 {
		t.Error("no slot table was removed")
	}
}

// weightedObjects returns a Service of both families with one endpoint for each weight.
func weightedObjects(algorithm string, protocol corev1.Protocol, weights []string) []any {
	s := lab.Service("shop", "web", movingIP(0, 0), movingIP(0, 1))
	s.Annotations = map[string]string{"kube-nft.io/lb-algorithm": algorithm}
	s.Spec.Ports[0].Protocol = protocol
	objects := []any{node, s}
	for family := range 2 {
		for i, weight := range weights {
			slice := lab.Slice("shop", "web", i, lab.FamilyOf(movingHost(1, family)), []netip.Addr{movingHost(1+i, family)})
			slice.Name = fmt.Sprintf("web-%d-%d", family, i)
			slice.Annotations = map[string]string{"kube-nft.io/weight": weight}
			slice.Ports = []discoveryv1.EndpointPort{{Name: slice.Ports[0].Name, Protocol: &protocol, Port: slice.Ports[0].Port}}
			objects = append(objects, slice)
		}
	}
	return objects
}

// TestWeightsOfConnections counts where connections go with the weights 1, 2 and 7.
func TestWeightsOfConnections(t *testing.T) {
	weights := []float64{1, 2, 7}
	for _, algorithm := range []string{"random", "maglev"} {
		t.Run(algorithm, func(t *testing.T) {
			b := newBench(t, nodeAddresses, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"),
				netip.MustParsePrefix("fd00:10:244::/48")})
			heard, objects := lab.ListenToNotices(t), lab.NewDirectory(t)
			objects.Write(t, "objects.yaml",
				lab.Manifest(append(weightedObjects(algorithm, corev1.ProtocolTCP, []string{"1", "2", "7"}),
					tickService("first"))...))
			p := objects.Start(t, "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48")
			t.Cleanup(func() { logOnFailure(t, p) })
			heard.Next(t, lab.About("shop/first:http"))
			for family := range 2 {
				b.port = firstPort - 1
				reached := make(map[netip.AddrPort]int)
				const connections = 10000
				for rest := connections; rest > 0; rest -= tunQueue / 2 {
					outcomes, err := b.try(flow{From: hashedClients[family], Via: "external", Proto: "tcp",
						To: netip.AddrPortFrom(movingIP(0, family), 80)}, min(rest, tunQueue/2))
					if err != nil {
						t.Fatal(err)
					}
					for _, o := range outcomes {
						reached[o.endpoint]++
					}
				}
				statistic := 0.0
				for i, weight := range weights {
					want, got := connections*weight/10, float64(reached[netip.AddrPortFrom(movingHost(1+i, family), lab.EndpointPort)])
					statistic += (got - want) * (got - want) / want
					if math.Abs(got-want) > 0.02*connections {
						t.Errorf("family %d: weight %g gets %g of %d connections", family, weight, got, connections)
					}
				}
				if bound := chiSquareBound(len(weights)); statistic > bound {
					t.Errorf("family %d: %v: chi-square %.1f, the weights stay below %.1f", family, reached, statistic, bound)
				}
			}
		})
	}
}

// TestDrain: an endpoint whose weight becomes 0 keeps its flows, of UDP too, and gets no new ones.
// When all are drained, new ones are rejected.
func TestDrain(t *testing.T) {
	for _, algorithm := range []string{"random", "maglev"} {
		t.Run(algorithm, func(t *testing.T) {
			b := newBench(t, nodeAddresses, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"),
				netip.MustParsePrefix("fd00:10:244::/48")})
			heard, objects := lab.ListenToNotices(t), lab.NewDirectory(t)
			show := func(tick string, weights ...string) {
				objects.Write(t, "objects.yaml", lab.Manifest(append(weightedObjects(algorithm, corev1.ProtocolUDP, weights),
					tickService(tick))...))
			}
			show("first", "1", "1")
			p := objects.Start(t, "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48")
			t.Cleanup(func() { logOnFailure(t, p) })
			heard.Next(t, lab.About("shop/first:http"))
			for family := range 2 {
				f := flow{From: hashedClients[family], Via: "external", Proto: "udp",
					To: netip.AddrPortFrom(movingIP(0, family), 80)}
				drained := netip.AddrPortFrom(movingHost(1, family), lab.EndpointPort)
				begin, step := b.port, fmt.Sprint("drained-", family)
				before, err := b.try(f, 60)
				if err != nil {
					t.Fatal(err)
				}
				show(step, "0", "1")
				heard.Next(t, lab.About("shop/"+step+":http"))
				fresh, err := b.try(f, 60)
				if err != nil {
					t.Fatal(err)
				}
				for sent, o := range fresh {
					if o.result != delivered || o.endpoint == drained {
						t.Errorf("new: %s: %s", sent, o)
					}
				}
				b.port = begin
				again, err := b.try(f, 60)
				if err != nil {
					t.Fatal(err)
				}
				kept := 0
				for sent, o := range again {
					if o != before[sent] {
						t.Errorf("%s: %s, before: %s", sent, o, before[sent])
					}
					if o.endpoint == drained {
						kept++
					}
				}
				if kept == 0 {
					t.Error("no flow of the drained endpoint")
				}
				b.port += 1000
				step = fmt.Sprint("all-", family)
				show(step, "0", "0")
				heard.Next(t, lab.About("shop/"+step+":http"))
				none, err := b.try(f, 40)
				if err != nil {
					t.Fatal(err)
				}
				for sent, o := range none {
					if o.result != rejected {
						t.Errorf("all drained: %s: %s", sent, o)
					}
				}
				step = fmt.Sprint("again-", family)
				show(step, "1", "1")
				heard.Next(t, lab.About("shop/"+step+":http"))
			}
		})
	}
}
