package packets

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// Sizes of the random worlds.
const (
	randomWorlds   = 3
	randomServices = 8
)

// A randomService is a Service that was made up, in one family.
type randomService struct {
	name                           string
	number, family                 int
	proto                          string
	nodePort                       int  // 0: none
	external, balancer, restricted bool // has an external IP, a load-balancer IP, source ranges for the latter
	internalLocal, externalLocal   bool
	crowded                        bool // has so many external IPs that its endpoint lists are shared
	maglev, sourceIP               bool // a hash of address and port chooses, or of the address alone
	fallback                       bool // a policy Local without an endpoint here uses all
	nodePortRestricted             bool // by the same ranges
	reset, ping, affinity          bool
	weights                        [2]string
	endpoints                      []randomEndpoint
}

// A randomEndpoint is an endpoint of a randomService.
type randomEndpoint struct {
	host        int
	here, ready bool
	slice       int // its weight is one of two
}

// newRandomService makes up a Service; numbers keep the addresses of Services apart.
func newRandomService(random *rand.Rand, number int) randomService {
	yes := func() bool { return random.IntN(2) == 0 }
	s := randomService{
		name: fmt.Sprintf("web-%d", number), number: number, family: random.IntN(2),
		proto:    []string{"tcp", "udp", "sctp"}[random.IntN(3)],
		external: yes(), balancer: yes(), restricted: yes(),
		internalLocal: yes(), externalLocal: yes(), crowded: random.IntN(3) == 0, maglev: random.IntN(3) == 0,
		sourceIP: yes(),
		fallback: random.IntN(3) == 0, nodePortRestricted: yes(), reset: yes(), ping: yes(), affinity: yes(),
	}
	for i := range s.weights {
		s.weights[i] = []string{"", "", "", "0", "2", "3"}[random.IntN(6)]
	}
	if s.balancer || yes() {
		s.nodePort = 30000 + number
	}
	for host := range random.IntN(6) {
		s.endpoints = append(s.endpoints, randomEndpoint{host: 10*number + host + 1, here: random.IntN(3) == 0,
			ready: random.IntN(4) != 0, slice: random.IntN(2)})
	}
	return s
}

// address returns the Service's address of a kind.
func (s *randomService) address(kind string) netip.Addr {
	net := map[string][]string{
		"cluster":  {"10.96.8.%d", "fd00:10:96:8::%d"},
		"external": {"198.51.100.%d", "2001:db8:51::%d"},
		"balancer": {"198.51.101.%d", "2001:db8:52::%d"},
	}[kind][s.family]
	return netip.MustParseAddr(fmt.Sprintf(net, s.number+1))
}

// allowedRange holds the only clients that restricted load-balancer IPs serve.
var allowedRange = []string{"203.0.113.0/25", "2001:db8:113:8000::/49"}

// objects returns the Service and its EndpointSlices.
func (s *randomService) objects() []any {
	service := lab.Service("shop", s.name, s.address("cluster"))
	spec, port := &service.Spec, &service.Spec.Ports[0]
	protocol := corev1.Protocol(strings.ToUpper(s.proto))
	port.Protocol, port.NodePort = protocol, int32(s.nodePort)
	spec.Type = s.kind()
	if s.internalLocal {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if s.external {
		spec.ExternalIPs = []string{s.address("external").String()}
	}
	if s.external && s.crowded {
		first := netip.MustParseAddr([]string{"198.18.0.1", "2001:db8:53::1"}[s.family])
		for _, addr := range lab.Addresses(first, 10_000)[1100*s.number : 1100*(s.number+1)] {
			spec.ExternalIPs = append(spec.ExternalIPs, addr.String())
		}
	}
	if s.external || s.nodePort != 0 {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		if s.externalLocal {
			spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
	}
	if s.balancer {
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: s.address("balancer").String()}}
	}
	if s.balancer && s.externalLocal {
		spec.HealthCheckNodePort = int32(31000 + s.number)
	}
	if s.balancer && s.restricted {
		spec.LoadBalancerSourceRanges = []string{allowedRange[s.family]}
	}
	if s.affinity && s.one() {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	service.Annotations = make(map[string]string)
	for annotation, wanted := range map[string]bool{
		"lb-algorithm: maglev": s.maglev, "hash: source-ip": s.sourceIP, "local-fallback: cluster": s.fallback,
		"source-ranges-for-node-ports: true": s.nodePortRestricted, "connections-of-departed: reset": s.reset,
		"ping: true": s.ping,
	} {
		if key, value, _ := strings.Cut(annotation, ": "); wanted {
			service.Annotations["kube-nft.io/"+key] = value
		}
	}
	var parts [2]*discoveryv1.EndpointSlice
	for i := range parts {
		parts[i] = lab.Slice("shop", s.name, i, spec.IPFamilies[0], nil)
		parts[i].Ports[0].Protocol = &protocol
		if s.weights[i] != "" {
			parts[i].Annotations = map[string]string{"kube-nft.io/weight": s.weights[i]}
		}
	}
	for _, e := range s.endpoints {
		slice := parts[e.slice]
		node := "node-b"
		if e.here {
			node = lab.NodeName
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{movingHost(e.host, s.family).String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &e.ready},
		})
	}
	return []any{service, parts[0], parts[1]}
}

// kind returns the type of the Service.
func (s *randomService) kind() corev1.ServiceType {
	switch {
	case s.balancer:
		return corev1.ServiceTypeLoadBalancer
	case s.nodePort != 0:
		return corev1.ServiceTypeNodePort
	}
	return corev1.ServiceTypeClusterIP
}

// one reports whether each client gets one endpoint, with session affinity or without.
func (s *randomService) one() bool { return s.maglev && s.sourceIP }

// lists returns the endpoints that traffic policies choose from.
func (s *randomService) lists() (everywhere, here []netip.AddrPort) {
	for _, e := range s.endpoints {
		endpoint := netip.AddrPortFrom(movingHost(e.host, s.family), 8080)
		if s.weights[e.slice] == "0" {
			continue // gets no new connections
		}
		if e.ready {
			everywhere = append(everywhere, endpoint)
		}
		if e.ready && e.here {
			here = append(here, endpoint)
		}
	}
	return everywhere, here
}

// A randomClient opens connections.
type randomClient struct {
	via     string
	from    []string // by family
	allowed bool     // by allowedRange
}

var randomClients = []randomClient{
	{"pod", []string{"10.244.7.1", "fd00:10:244:7::1"}, false},
	{"local", []string{"192.168.0.2", "fd00:192:168::2"}, false},
	{"external", []string{"203.0.113.2", "2001:db8:113:8000::2"}, true},
	{"external", []string{"203.0.113.200", "2001:db8:113::2"}, false},
}

// expect says what the Service API promises a client at an address of a kind.
func (s *randomService) expect(kind string, c randomClient) expectation {
	everywhere, here := s.lists()
	list, masquerade := everywhere, true
	switch {
	case kind == "balancer" && s.restricted && !c.allowed:
		return expectation{Drop: true}
	case kind == "node port" && s.balancer && s.restricted && s.nodePortRestricted && !c.allowed && c.via != "local":
		return expectation{Drop: true}
	case len(everywhere) == 0:
		return expectation{Reject: true}
	case kind == "cluster":
		masquerade = c.via != "pod"
		if s.internalLocal && !(s.fallback && len(here) == 0) {
			list = here
		}
	case s.externalLocal && c.via == "pod":
		masquerade = false
	case s.externalLocal && c.via == "external" && !(s.fallback && len(here) == 0):
		list, masquerade = here, false
	}
	if len(list) == 0 {
		return expectation{Drop: true}
	}
	return expectation{DNAT: list, One: s.one(), Masquerade: &masquerade}
}

// flows returns the connections of every client to every address of the Service.
func (s *randomService) flows() []flow {
	targets := map[string]netip.AddrPort{"cluster": netip.AddrPortFrom(s.address("cluster"), 80)}
	if s.external {
		targets["external"] = netip.AddrPortFrom(s.address("external"), 80)
	}
	if s.balancer {
		targets["balancer"] = netip.AddrPortFrom(s.address("balancer"), 80)
	}
	if s.nodePort != 0 {
		targets["node port"] = netip.AddrPortFrom(nodeAddresses[s.family], uint16(s.nodePort))
	}
	var flows []flow
	for kind, to := range targets {
		for _, c := range randomClients {
			from := netip.MustParseAddr(c.from[s.family])
			flows = append(flows, flow{Name: s.name + " " + kind, From: from, Via: c.via, Proto: s.proto, To: to,
				Expect: s.expect(kind, c)})
		}
	}
	return flows
}

// TestRandomWorlds makes up Services, one world after the other, and sends packets of every
// kind of client to every address of each. What becomes of them is held against what the
// Service API promises, which is written down here once more, in terms of the API alone.
func TestRandomWorlds(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	b := newBench(t, nodeAddresses, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"),
		netip.MustParsePrefix("fd00:10:244::/48")})
	heard, objects := lab.ListenToNotices(t), lab.NewDirectory(t)
	objects.Write(t, "objects.yaml", lab.Manifest(node))
	p := objects.Start(t, "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48")
	t.Cleanup(func() { logOnFailure(t, p) })
	for world := range randomWorlds {
		made, flows := makeUpWorld(random)
		for _, half := range []string{"a", "b"} { // after the second one the first is done in any case
			tick := fmt.Sprintf("tick-%d-%s", world, half)
			objects.Write(t, "objects.yaml", lab.Manifest(append(made, tickService(tick))...))
			heard.Next(t, lab.About("shop/"+tick+":http"))
		}
		flushTracked(t)
		b.port = firstPort - 1
		for _, f := range flows {
			if complaint := b.complaint(f); complaint != "" {
				t.Errorf("world %d, %s, %s %s via %s to %s\n%s", world, f.Name, f.Proto, f.From, f.Via, f.To, complaint)
			}
		}
		if t.Failed() {
			t.Fatalf("objects:\n%s", lab.Manifest(made...))
		}
	}
}

// makeUpWorld returns the objects of a world and the flows to all its addresses.
func makeUpWorld(random *rand.Rand) (objects []any, flows []flow) {
	objects = []any{node}
	for number := range randomServices {
		s := newRandomService(random, number)
		objects, flows = append(objects, s.objects()...), append(flows, s.flows()...)
	}
	return objects, flows
}
