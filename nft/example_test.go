package nft_test

import (
	"fmt"
	"net/netip"

	"github.com/kube-nft/kube-nft/nft"
)

// blocklist is a table that drops connections from the addresses of a set.
func blocklist(addrs ...string) *nft.Table {
	blocked := &nft.Elements{Set: &nft.Set{Name: "blocked", Key: []nft.Field{nft.FieldAddr}},
		Map: map[string]nft.Element{}}
	for _, addr := range addrs {
		blocked.Map[nft.AddrKey(netip.MustParseAddr(addr))] = nft.Element{}
	}
	t := nft.NewTable(nft.IP)
	t.Sets["blocked"] = blocked
	t.Chains["in"] = &nft.Chain{
		Name: "in", Hook: &nft.Hook{Type: "nat", Point: "prerouting", Priority: -101},
		Rules: []nft.Rule{{nft.InSet{Key: []nft.Part{nft.Source}, Set: "blocked"}, nft.Drop}},
	}
	return t
}

// A trace follows the first packet of a connection through a table.
func ExampleTable_Trace() {
	result := blocklist("192.0.2.1").Trace(nft.Packet{
		Source: netip.MustParseAddr("192.0.2.1"), Destination: netip.MustParseAddr("10.96.0.10"), Protocol: 6, Port: 80,
		Interface: "eth0",
	})
	fmt.Println(result.Outcome)
	for _, step := range result.Steps {
		fmt.Println(step)
	}
	// Output:
	// drop
	// element of blocked: 192.0.2.1
}
