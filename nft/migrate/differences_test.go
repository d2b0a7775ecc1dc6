package migrate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/tracker"
)

// A world is a Service with three endpoints, one of them on this node, a node port and a load balancer of policy
// Local, in both families, as kube-nft wants it.
func world() (ports []*tracker.ServicePort) {
	for _, f := range tracker.Families {
		addr := func(host string) netip.Addr {
			if f == tracker.IPv6 {
				return netip.MustParseAddr("fd00::" + host)
			}
			return netip.MustParseAddr("10.0.0." + host)
		}
		p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{
			ID:        tracker.PortID{Namespace: "shop", Service: "web", Port: "http", Protocol: tracker.TCP, Family: f},
			ClusterIP: addr("80"), Port: 80, NodePort: 30080, LoadBalancers: []netip.Addr{addr("90")}, ExternalLocal: true,
		},
			Lists:        new(tracker.Lists),
			HasEndpoints: true,
		}
		for _, host := range []string{"1", "2", "3"} {
			p.Cluster = append(p.Cluster, netip.AddrPortFrom(addr(host), 8080))
		}
		p.Local = p.Cluster[:1]
		ports = append(ports, p)
	}
	return ports
}

// served is what a kube-proxy in the iptables mode serves of such Service ports.
func served(ports []*tracker.ServicePort) (list []legacy.Frontend) {
	for _, p := range ports {
		cluster := legacy.Lists{Cluster: slices.Clone(p.Cluster)}
		external := legacy.Lists{Cluster: cluster.Cluster, Local: slices.Clone(p.Local), HasLocal: true}
		add := func(f tracker.Frontend, lists legacy.Lists) {
			list = append(list, legacy.Frontend{Frontend: f, Service: "shop/web:http", Lists: lists})
		}
		add(tracker.Frontend{Address: p.ClusterIP, Protocol: p.ID.Protocol, Port: p.Port}, cluster)
		add(tracker.Frontend{Address: p.LoadBalancers[0], Protocol: p.ID.Protocol, Port: p.Port}, external)
		add(tracker.NodePort(p.ID.Family, p.ID.Protocol, p.NodePort), external)
	}
	return list
}

// TestNoDifferencesFromNothing: where kube-proxy serves nothing, a plan does not say that its endpoints differ.
func TestNoDifferencesFromNothing(t *testing.T) {
	c := compare(&legacy.Inventory{Endpoints: true}, ours(world()), "", nil)
	if checks := c.Checks(false); len(c.Differences) == 0 || len(checks) != 1 || checks[0].About != "frontends" {
		t.Errorf("%d differences: %v", len(c.Differences), checks)
	}
}

// TestDifferences plants one difference each in kube-proxy's rules.
func TestDifferences(t *testing.T) {
	here := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	endpoint := netip.MustParseAddrPort("10.0.0.9:8080")
	const clusterIP, balancer, nodePort = 0, 1, 2 // of IPv4
	without := func(i int) func([]legacy.Frontend) []legacy.Frontend {
		return func(list []legacy.Frontend) []legacy.Frontend { return slices.Delete(list, i, i+1) }
	}
	for _, tt := range []struct {
		name  string
		plant func([]legacy.Frontend) []legacy.Frontend
		want  []string // the beginnings of the differences, in order
	}{
		{"nothing", without(0), []string{"only-kube-nft: 10.0.0.80:80/tcp of shop/web:http: kube-proxy does not serve it"}},
		{"more", func(list []legacy.Frontend) []legacy.Frontend {
			list[clusterIP].Address = netip.MustParseAddr("10.0.0.81")
			return append(list, served(world())[clusterIP])
		}, []string{"only-kube-proxy: 10.0.0.81:80/tcp of shop/web:http: kube-proxy serves it, and no Service has it"}},
		{"an endpoint less", func(list []legacy.Frontend) []legacy.Frontend {
			list[clusterIP].Cluster = list[clusterIP].Cluster[:2]
			return list
		}, []string{"endpoints: 10.0.0.80:80/tcp of shop/web:http: kube-proxy lacks 10.0.0.3:8080"}},
		{"an endpoint more", func(list []legacy.Frontend) []legacy.Frontend {
			list[clusterIP].Cluster = append(list[clusterIP].Cluster, endpoint)
			return list
		}, []string{"endpoints: 10.0.0.80:80/tcp of shop/web:http: kube-nft lacks 10.0.0.9:8080"}},
		{"another port", func(list []legacy.Frontend) []legacy.Frontend {
			list[clusterIP].Cluster = slices.Clone(list[clusterIP].Cluster)
			list[clusterIP].Cluster[0] = netip.MustParseAddrPort("10.0.0.1:81")
			return list
		}, []string{"endpoints: 10.0.0.80:80/tcp of shop/web:http: kube-proxy lacks 10.0.0.1:8080, kube-nft lacks " +
			"10.0.0.1:81"}},
		{"another local endpoint", func(list []legacy.Frontend) []legacy.Frontend {
			list[balancer].Local = list[balancer].Cluster[1:2]
			return list
		}, []string{"local-endpoints: 10.0.0.90:80/tcp of shop/web:http: kube-proxy lacks 10.0.0.1:8080, kube-nft lacks " +
			"10.0.0.2:8080"}},
		{"another protocol", func(list []legacy.Frontend) []legacy.Frontend {
			list[clusterIP].Protocol = tracker.UDP
			return list
		}, []string{"only-kube-nft: 10.0.0.80:80/tcp", "only-kube-proxy: 10.0.0.80:80/udp"}},
		{"no node port", without(nodePort), []string{"only-kube-nft: node port 30080/tcp of shop/web:http"}},
		{"no load balancer", without(balancer), []string{"only-kube-nft: 10.0.0.90:80/tcp of shop/web:http"}},
		{"IPv6 only", func(list []legacy.Frontend) []legacy.Frontend { return list[3:] },
			[]string{"only-kube-nft: node port 30080/tcp", "only-kube-nft: 10.0.0.80:80", "only-kube-nft: 10.0.0.90:80"}},
		{"another policy", func(list []legacy.Frontend) []legacy.Frontend {
			list[balancer].HasLocal, list[balancer].Local = false, nil
			return list
		}, []string{"traffic-policy: 10.0.0.90:80/tcp of shop/web:http: kube-proxy has the traffic policy Cluster, " +
			"kube-nft Local"}},
		{"rules of two modes", func(list []legacy.Frontend) []legacy.Frontend {
			other := served(world())[clusterIP]
			other.Cluster = nil
			return append(list, other)
		}, nil},
		{"one list, as of IPVS", func(list []legacy.Frontend) []legacy.Frontend {
			for i := range list {
				if l := &list[i].Lists; l.HasLocal {
					l.Cluster, l.Local, l.HasLocal = l.Local, nil, false
				}
				list[i].OneList = true
			}
			list[nodePort].Cluster = nil
			return list
		}, []string{"local-endpoints: node port 30080/tcp of shop/web:http: kube-proxy lacks 10.0.0.1:8080"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inv := &legacy.Inventory{Endpoints: true, Parts: []legacy.Part{{Frontends: served(world())}}}
			if c := compare(inv, ours(world(), here...), "", here); len(c.Differences) > 0 {
				t.Fatalf("before: %v", c.Differences)
			}
			inv.Parts[0].Frontends = tt.plant(inv.Parts[0].Frontends)
			got := compare(inv, ours(world(), here...), "", here).Differences
			for i := range max(len(got), len(tt.want)) {
				if i >= len(got) || i >= len(tt.want) || !strings.HasPrefix(got[i].String(), tt.want[i]) {
					t.Fatalf("%v\nwant %v", got, tt.want)
				}
			}
		})
	}
}

// TestLasting: a difference counts when it is in three looks over five seconds, and the wanted state does not change.
func TestLasting(t *testing.T) {
	at := func(n int) Difference {
		at := tracker.NodePort(tracker.IPv4, tracker.TCP, uint16(n))
		return Difference{Kind: OnlyKubeNFT, Frontend: fmt.Sprint(n), At: at}
	}
	l, now := Lasting{After: 5 * time.Second}, time.Unix(0, 0)
	look := func(seconds int, touched int, differences ...Difference) (lasting, others int) {
		now = now.Add(time.Duration(seconds) * time.Second)
		list, others := l.Look(now, differences, func(f tracker.Frontend) bool { return int(f.Port) == touched })
		return len(list), others
	}
	for i, step := range []struct {
		seconds, touched int
		differences      []Difference
		lasting, others  int
	}{
		{0, 0, []Difference{at(1)}, 0, 1},
		{9, 0, []Difference{at(1)}, 0, 1}, // two looks
		{1, 0, []Difference{at(1), at(2)}, 1, 1},
		{1, 0, []Difference{at(2)}, 0, 1},
		{1, 0, []Difference{at(1), at(2)}, 0, 2}, // it was gone
		{3, 2, []Difference{at(1), at(2)}, 0, 2},
		{2, 0, []Difference{at(1), at(2)}, 1, 1},
		{3, 0, []Difference{at(1), at(2)}, 2, 0},
	} {
		if lasting, others := look(step.seconds, step.touched, step.differences...); lasting != step.lasting ||
			others != step.others {
			t.Errorf("look %d: %d last and %d others, want %d and %d", i, lasting, others, step.lasting, step.others)
		}
	}
}
