package migrate

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// clusterIP is the cluster IP of Service i.
func clusterIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}) }

// cluster has n Services with endpoints, the first of which have node ports.
func cluster(n, nodePorts int) (ports []*tracker.ServicePort) {
	for i := range n {
		p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{
			ID: tracker.PortID{Namespace: "shop", Service: fmt.Sprintf("s-%d", i), Protocol: tracker.TCP,
				Family: tracker.IPv4},
			ClusterIP: clusterIP(i), Port: 80,
		}, HasEndpoints: true,
			Lists: &tracker.Lists{Cluster: []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:8080")}},
		}
		if i < nodePorts {
			p.NodePort = uint16(30000 + i)
		}
		ports = append(ports, p)
	}
	return ports
}

// theirs is what kube-proxy's iptables mode serves of a cluster.
func theirs(ports []*tracker.ServicePort) *legacy.Inventory {
	part := legacy.Part{Backend: legacy.Xtables, Family: "ip", Table: "nat", Chains: []string{"KUBE-SERVICES"}}
	for _, p := range ports {
		name := p.ID.Namespace + "/" + p.ID.Service
		part.Frontends = append(part.Frontends,
			legacy.Frontend{Frontend: tracker.Frontend{Address: p.ClusterIP, Protocol: p.ID.Protocol, Port: p.Port},
				Service: name})
		if p.NodePort != 0 {
			part.Frontends = append(part.Frontends,
				legacy.Frontend{Frontend: tracker.NodePort(tracker.IPv4, p.ID.Protocol, p.NodePort), Service: name})
		}
	}
	return &legacy.Inventory{Parts: []legacy.Part{part}}
}

// ours are the tables for a cluster on a node with these addresses.
func ours(ports []*tracker.ServicePort, addrs ...netip.Addr) nft.Tables {
	ruleset := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 16})
	delta := tracker.Delta{Changed: ports}
	ruleset.Apply(delta)
	ruleset.SetNodePortAddresses(addrs)
	return ruleset.Want()
}

// without are ports that have lost their endpoints.
func without(ports []*tracker.ServicePort) (refused []*tracker.ServicePort) {
	for _, p := range ports {
		q := *p
		q.HasEndpoints, q.Lists = false, new(tracker.Lists)
		refused = append(refused, &q)
	}
	return refused
}

// local are ports without an endpoint on this node, of a traffic policy that asks for one.
func local(ports []*tracker.ServicePort) (dropped []*tracker.ServicePort) {
	for _, p := range ports {
		q := *p
		q.PortSpec = new(*q.PortSpec)
		q.InternalLocal, q.Lists = true, new(tracker.Lists)
		dropped = append(dropped, &q)
	}
	return dropped
}

// TestCompare compares as a takeover does: what may vanish, and what may not.
func TestCompare(t *testing.T) {
	here, elsewhere := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9")
	all := cluster(100, 10)
	for _, tt := range []struct {
		name    string
		theirs  *legacy.Inventory
		ours    nft.Tables
		node    string // missing
		refused string // part of the error; empty: it is not
		lost    int
	}{
		{"the same", theirs(all), ours(all, here), "", "", 0},
		{"more", theirs(all[:50]), ours(all, here), "", "", 0},
		{"a few are deleted", theirs(all), ours(all[:92], here), "", "", 8},
		{"one more than a few", theirs(all), ours(all[:91], here), "", "9 of 110 frontends", 9},
		{"half", theirs(all), ours(all[:50], here), "", "50 of 110 frontends", 50},
		{"a few of a small cluster", theirs(all[90:94]), ours(all[91:94], here), "", "", 1},
		{"too many of a small cluster", theirs(all[90:94]), ours(all[92:94], here), "", "2 of 4 frontends", 2},
		{"an hour of a large cluster", theirs(cluster(2000, 0)), ours(cluster(1980, 0), here), "", "", 20},
		{"a source without Services", theirs(all), ours(nil, here), "", "the source has no Service with an endpoint", 110},
		{"a source without slices", theirs(all), ours(without(all), here), "", "the source has no Service with an endpoint",
			110},
		{"few have lost their endpoints", theirs(all), ours(append(without(all[94:]), all[:94]...), here), "", "", 6},
		{"many have lost their endpoints", theirs(all), ours(append(without(all[50:]), all[:50]...), here), "",
			"their Services have no endpoint: 10.96.0.50:80/tcp of shop/s-50, ", 50},
		{"none on this node", theirs(all), ours(local(all), here), "", "", 0},
		{"no Node", theirs(all), ours(all), "node-x", "no Node is called node-x", 10},
		{"no Node, no node ports", theirs(all[10:]), ours(all), "node-x", "no Node is called node-x", 0},
		{"another Node", theirs(all), ours(all, elsewhere), "",
			"node ports would be served at no address of this node: node port 30000/tcp of shop/s-0, ", 10},
		{"nothing to lose", &legacy.Inventory{}, ours(nil), "node-x", "", 0},
		{"what cannot be seen", &legacy.Inventory{Parts: []legacy.Part{{Needs: "CAP_NET_RAW"}}}, ours(nil), "",
			"the source has no Service", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := compare(tt.theirs, tt.ours, tt.node, []netip.Addr{here})
			refusal := c.Refusal()
			if (refusal != nil) != (tt.refused != "") || refusal != nil && !strings.Contains(refusal.Error(), tt.refused) {
				t.Errorf("refused with %v, want %q", refusal, tt.refused)
			}
			if refusal != nil && !IsLoss(fmt.Errorf("compare: %w", refusal)) {
				t.Errorf("%v is no loss", refusal)
			}
			if len(c.Lost) != tt.lost {
				t.Errorf("%d are lost, want %d: %s", len(c.Lost), tt.lost, c.Summary())
			}
			if refusal != nil && len(refusal.Error()) > 1500 {
				t.Errorf("%d bytes of error", len(refusal.Error()))
			}
			want := map[bool]Level{true: Blocks, false: OK}[refusal != nil]
			if refusal == nil && tt.lost > 0 {
				want = Warning
			}
			if check := c.check(false); check.Level != want {
				t.Errorf("check %+v, want %s", check, want)
			}
			if check := c.check(true); check.Level == Blocks {
				t.Errorf("by force: check %+v", check)
			}
		})
	}
}

// TestCompareNames: two modes of kube-proxy over each other are one, and the better name is shown.
func TestCompareNames(t *testing.T) {
	inv := theirs(cluster(2, 1))
	ipvs := legacy.Part{Backend: legacy.IPVS}
	for _, f := range inv.Parts[0].Frontends {
		f.Service = ""
		ipvs.Frontends = append(ipvs.Frontends, f)
	}
	inv.Parts = append([]legacy.Part{ipvs}, inv.Parts...)
	c := compare(inv, nil, "", nil)
	want := "3 of 3 frontends that kube-proxy serves would not be served; no Service has them: node port 30000/tcp of " +
		"shop/s-0, " +
		"10.96.0.0:80/tcp of shop/s-0, 10.96.0.1:80/tcp of shop/s-1"
	if got := c.Summary(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
