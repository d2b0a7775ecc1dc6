package inspect

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestDigestOfList: nodes have the endpoints of a frontend in different orders, some in a list that frontends share.
func TestDigestOfList(t *testing.T) {
	list := func(port uint16, endpoints ...string) readback.List {
		l := readback.List{Port: port}
		for _, ep := range endpoints {
			l.Endpoints = append(l.Endpoints, netip.MustParseAddrPort(ep))
		}
		return l
	}
	seen := make(map[string]bool)
	for name, lists := range map[string][]readback.List{
		"one port": {list(0, "10.0.0.1:80", "10.0.0.2:80"), list(0, "10.0.0.2:80", "10.0.0.1:80"),
			list(80, "10.0.0.2:0", "10.0.0.1:0")},
		"two ports":       {list(0, "10.0.0.1:80", "10.0.0.2:81"), list(0, "10.0.0.2:81", "10.0.0.1:80")},
		"the other way":   {list(0, "10.0.0.1:81", "10.0.0.2:80"), list(0, "10.0.0.2:80", "10.0.0.1:81")},
		"another port":    {list(81, "10.0.0.1:0", "10.0.0.2:0")},
		"no endpoints":    {list(0), list(80)},
		"one endpoint":    {list(0, "10.0.0.1:80"), list(80, "10.0.0.1:0")},
		"an IPv6 address": {list(0, "[2001:db8::1]:80"), list(80, "[2001:db8::1]:0")},
	} {
		digest := digestOfList(lists[0], make(map[*netip.AddrPort]string))
		if seen[digest] {
			t.Errorf("%s: the digest %q is that of other lists", name, digest)
		}
		seen[digest] = true
		for i, l := range lists {
			if got := digestOfList(l, make(map[*netip.AddrPort]string)); got != digest {
				t.Errorf("%s: list %d has the digest %q, want %q", name, i, got, digest)
			}
		}
	}
}

// TestTooManyEndpoints: one Service can have more endpoints at its ports than fit into memory as a list.
func TestTooManyEndpoints(t *testing.T) {
	const ports, size = 1001, 1000
	lists := &tracker.Lists{}
	for _, addr := range lab.Addresses(netip.MustParseAddr("10.8.0.0"), size) {
		lists.Cluster = append(lists.Cluster, netip.AddrPortFrom(addr, 0))
	}
	var delta tracker.Delta
	for i := range ports {
		delta.Changed = append(delta.Changed, &tracker.ServicePort{PortSpec: &tracker.PortSpec{
			ID: tracker.PortID{Namespace: "shop", Service: "large", Port: fmt.Sprint("p", i), Protocol: tracker.TCP,
				Family: tracker.IPv4},
			ClusterIP: netip.MustParseAddr("10.96.0.1"), Port: uint16(1000 + i),
		}, TargetPort: uint16(8000 + i), Lists: lists,
			HasEndpoints: true,
		})
	}
	r := services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}, MasqueradeBit: 14})
	r.Apply(delta)
	i := &inspection{tables: map[nft.Family]*readback.Table{nft.IP: readback.New(r.Want()[nft.IP])}}
	err := getEndpoints(nil, new(selection), i)
	if err == nil || !strings.Contains(err.Error(), "the lists have 1001000 endpoints, and get lists 1000000 at most") {
		t.Errorf("%v", err)
	}
	s := &selection{namespace: "shop", name: "large", port: "p7"}
	if list := s.services(i.tables[nft.IP]); len(list) != 1 || list[0].Cluster.Len() != size {
		t.Errorf("one port has %d frontends", len(list))
	}
}
