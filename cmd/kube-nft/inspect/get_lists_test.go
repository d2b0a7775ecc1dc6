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

// TestTooManyEndpoints: one Service can have more endpoints at its ports than fit into memory as a list.
func TestTooManyEndpoints(t *testing.T) {
	const ports, size = 1001, 1000
	lists := &tracker.Lists{}
	for _, addr := range lab.Addresses(netip.MustParseAddr("10.8.0.0"), size) {
		lists.Cluster = append(lists.Cluster, netip.AddrPortFrom(addr, 0))
	}
	var delta tracker.Delta
	for i := range ports {
		delta.Changed = append(delta.Changed, &tracker.ServicePort{
			ID: tracker.PortID{Namespace: "shop", Service: "large", Port: fmt.Sprint("p", i), Protocol: tracker.TCP,
				Family: tracker.IPv4},
			ClusterIP: netip.MustParseAddr("10.96.0.1"), Port: uint16(1000 + i), TargetPort: uint16(8000 + i), Lists: lists,
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
