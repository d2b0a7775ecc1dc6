package legacy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy/legacytest"
	"github.com/kube-nft/kube-nft/tracker"
)

// served lists what the rules of a shape lead to, in order.
func served(s legacytest.Shape) (list []Frontend) {
	for i := range s.Services {
		if s.Refused(i) {
			continue
		}
		name, protocol := legacytest.Name(i), protocolNumbers[s.Protocol(i)]
		at := func(addr netip.Addr) tracker.Frontend {
			return tracker.Frontend{Address: addr, Protocol: protocol, Port: 80}
		}
		list = append(list, Frontend{Frontend: at(s.ClusterIP(i)), Service: name})
		if port, ok := s.NodePort(i); ok {
			list = append(list,
				Frontend{Frontend: tracker.NodePort(s.Family, protocol, uint16(port)), Service: name})
		}
		if s.Local(i) {
			list = append(list, Frontend{Frontend: at(s.LoadBalancer(i)), Service: name})
		}
	}
	return sorted(list)
}

func sorted(list []Frontend) []Frontend {
	slices.SortFunc(list, func(a, b Frontend) int { return a.Compare(b.Frontend) })
	return list
}

// found lists the frontends of all parts.
func found(inv Inventory) (list []Frontend) {
	for _, p := range inv.Parts {
		list = append(list, p.Frontends...)
	}
	return sorted(list)
}

// compareAddr compares addresses, and frontends but for the chains to which they lead.
var compareAddr = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmpopts.IgnoreUnexported(Frontend{}),
}

// withEndpoints fills in the endpoint lists of a shape's frontends.
func withEndpoints(s legacytest.Shape, list []Frontend) []Frontend {
	index := make(map[string]int)
	for i := range s.Services {
		index[legacytest.Name(i)] = i
	}
	for n := range list {
		i, l := index[list[n].Service], &list[n].Lists
		for j := range s.Endpoints {
			l.Cluster = append(l.Cluster, netip.AddrPortFrom(s.Endpoint(i, j), 8080))
		}
		if s.Local(i) && list[n].Address != s.ClusterIP(i) {
			l.HasLocal, l.Local = true, l.Cluster[:1:1]
		}
	}
	return list
}

// TestEndpointLists reads the frontends, and their endpoints, out of the rules of each backend, in both ways of
// reading.
func TestEndpointLists(t *testing.T) {
	for _, f := range nft.Families {
		for _, b := range []Backend{Xtables, Compat, ProxyTables} {
			t.Run(string(b)+"/"+f.String(), func(t *testing.T) {
				n := newNode(t)
				if b == ProxyTables {
					lab.Run(t, shape(f).NFTables(), "nft", "-f", "-")
				} else {
					restore(t, f, b, shape(f).IPTables())
				}
				want := withEndpoints(shape(f), served(shape(f)))
				var reader Reader
				for i := range 3 { // the second time nothing has changed, the third time it knows the maps
					if i == 2 {
						lab.Run(t, "add table ip other", "nft", "-f", "-")
					}
					inv, err := reader.Read(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if inv.Same != (i == 1 && b != Xtables) {
						t.Errorf("reading %d: the same as before: %v", i, inv.Same)
					}
					if diff := cmp.Diff(want, found(inv), compareAddr); diff != "" {
						t.Errorf("Reader (-want +got):\n%s", diff)
					}
				}
				if diff := cmp.Diff(served(shape(f)), found(take(t, n)), compareAddr); diff != "" {
					t.Errorf("Inventory without endpoints (-want +got):\n%s", diff)
				}
				n.Endpoints = true
				if diff := cmp.Diff(want, found(take(t, n)), compareAddr); diff != "" {
					t.Errorf("Inventory (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestFrontendsOfRules reads rules in the forms of other releases, and rules that are no frontends.
func TestFrontendsOfRules(t *testing.T) {
	const text = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-W4EZ4TVQMAK4L24Q - [0:0]
:KUBE-SVC-X4EZ4TVQMAK4L24Q - [0:0]
-A KUBE-SERVICES ! -s 10.244.0.0/16 -d 10.96.0.9/32 -p tcp -m comment --comment "shop/a: cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "shop/a:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-W4EZ4TVQMAK4L24Q
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "shop/a:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-X4EZ4TVQMAK4L24Q
-A KUBE-SERVICES -d 10.96.0.2/32 -p sctp -m comment --comment "shop/b cluster IP" -m sctp --dport 81 -j KUBE-SVC-W4EZ4TVQMAK4L24Q
-A KUBE-SERVICES -d 10.96.1.0/24 -p tcp -m tcp --dport 80 -j KUBE-SVC-W4EZ4TVQMAK4L24Q
-A KUBE-SERVICES -d 10.96.0.3/32 -p tcp -m tcp --dport 80:82 -j KUBE-SVC-W4EZ4TVQMAK4L24Q
-A KUBE-SERVICES -d 10.96.0.4/32 -j KUBE-SVC-W4EZ4TVQMAK4L24Q
-A KUBE-SERVICES -d 10.96.0.5/32 -p udp -m udp --dport 53 -g KUBE-SVC-W4EZ4TVQMAK4L24Q
-A KUBE-SERVICES -d 192.0.2.1/32 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m comment --comment "shop/a:http" -m tcp --dport 30080 -j KUBE-MARK-MASQ
-A KUBE-NODEPORTS -p tcp -m comment --comment "shop/a:http" -m tcp --dport 30080 -j KUBE-SVC-W4EZ4TVQMAK4L24Q
-A KUBE-NODEPORTS -p sctp -m sctp --dport 30081 -j KUBE-SVC-W4EZ4TVQMAK4L24Q
-A PREROUTING -d 10.96.0.7/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-W4EZ4TVQMAK4L24Q
COMMIT
`
	want := []string{"node port 30080/tcp of shop/a:http", "node port 30081/sctp", "10.96.0.1:80/tcp of shop/a:http",
		"10.96.0.2:81/sctp of shop/b", "10.96.0.5:53/udp"}
	for _, b := range []Backend{Xtables, Compat} {
		t.Run(string(b), func(t *testing.T) {
			n := newNode(t)
			restore(t, nft.IP, b, text)
			var got []string
			for _, f := range found(take(t, n)) {
				got = append(got, f.String())
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestServiceOfChain(t *testing.T) {
	for chain, want := range map[string]string{
		"service-ULMVA6XW-shop/web/tcp/http":   "shop/web:http",
		"external-2QRHZV4L-shop/web-2/udp/":    "shop/web-2",
		"firewall-2QRHZV4L-shop/web/tcp/a-b":   "shop/web:a-b",
		"service-ULMVA6XW-shop/very-long-n...": "shop/very-long-n...",
		"reject-chain":                         "",
		"service-ULMVA6XW":                     "",
		"":                                     "",
	} {
		if got := serviceOfChain(chain); got != want {
			t.Errorf("%q: %q, want %q", chain, got, want)
		}
	}
}

// TestClassifyServers: servers without open destinations refuse; servers elsewhere, and those that do not
// translate, are of another program.
func TestClassifyServers(t *testing.T) {
	server := func(protocol, at string, open, connections int, foreign bool) Server {
		return Server{Protocol: protocol, Frontend: netip.MustParseAddrPort(at), Connections: connections,
			open: make([]netip.AddrPort, open), foreign: foreign}
	}
	var p Part
	p.addServers([]Server{
		server("tcp", "10.96.0.1:443", 2, 3, false), server("udp", "10.96.0.10:53", 0, 0, false),
		server("udp", "[fd00:10:96::a]:53", 1, 4, false), server("tcp", "192.0.2.1:30080", 1, 5, false),
		server("tcp", "198.51.100.1:30080", 1, 0, false), server("tcp", "[2001:db8::1]:30080", 1, 9, false),
		server("tcp", "192.0.2.9:8443", 3, 9, false), server("tcp", "192.0.2.7:30080", 3, 9, true),
		server("tcp", "203.0.113.1:30080", 0, 1, false),
	}, map[netip.Addr]bool{netip.MustParseAddr("10.96.0.1"): true, netip.MustParseAddr("10.96.0.10"): true,
		netip.MustParseAddr("fd00:10:96::a"): true},
		map[tracker.Frontend]bool{tracker.NodePort(tracker.IPv4, tracker.TCP, 30080): true})
	var frontends, foreign []string
	for _, f := range sorted(p.Frontends) {
		frontends = append(frontends, f.String())
	}
	if want := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")}; !slices.Equal(
		p.NodePortsAt, want) {
		t.Errorf("node ports at %v, want %v", p.NodePortsAt, want)
	}
	want := []string{"node port 30080/tcp", "10.96.0.1:443/tcp", "[fd00:10:96::a]:53/udp"}
	if diff := cmp.Diff(want, frontends); diff != "" {
		t.Errorf("frontends (-want +got):\n%s", diff)
	}
	for _, server := range p.OtherServers {
		foreign = append(foreign, server.Frontend.String())
	}
	if diff := cmp.Diff([]string{"[2001:db8::1]:30080", "192.0.2.9:8443", "192.0.2.7:30080"}, foreign); diff != "" {
		t.Errorf("foreign servers (-want +got):\n%s", diff)
	}
	if got := len(p.Servers); got != 6 {
		t.Errorf("%d servers of kube-proxy's, want 6", got)
	}
}

// TestNodePortSets reads node ports out of the ipsets of the IPVS mode.
func TestNodePortSets(t *testing.T) {
	newNode(t)
	lab.Run(t, `create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
create KUBE-NODE-PORT-LOCAL-TCP bitmap:port range 0-65535
create KUBE-6-NODE-PORT-UDP bitmap:port range 0-65535
create KUBE-NODE-PORT-SCTP-HASH hash:ip,port
add KUBE-NODE-PORT-TCP 30080
add KUBE-NODE-PORT-TCP 30443
add KUBE-NODE-PORT-LOCAL-TCP 30999
add KUBE-6-NODE-PORT-UDP 30053
add KUBE-NODE-PORT-SCTP-HASH 192.0.2.1,sctp:30081
`, "ipset", "restore")
	sets, err := readSets()
	if err != nil {
		t.Fatal(err)
	}
	got, err := readNodePorts(sets)
	if err != nil {
		t.Fatal(err)
	}
	want := map[tracker.Frontend]bool{
		tracker.NodePort(tracker.IPv4, tracker.TCP, 30080): true, tracker.NodePort(tracker.IPv4, tracker.TCP, 30443): true,
		tracker.NodePort(tracker.IPv6, tracker.UDP, 30053): true, tracker.NodePort(tracker.IPv4, tracker.SCTP, 30081): true,
	}
	if diff := cmp.Diff(want, got, compareAddr); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
