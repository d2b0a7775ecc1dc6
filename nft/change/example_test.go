package change_test

import (
	"fmt"
	"net/netip"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
)

// blocklist is a table with a set of addresses.
func blocklist(addrs ...string) *nft.Table {
	blocked := &nft.Elements{Set: &nft.Set{Name: "blocked", Key: []nft.Field{nft.FieldAddr}},
		Map: map[string]nft.Element{}}
	for _, addr := range addrs {
		blocked.Map[nft.AddrKey(netip.MustParseAddr(addr))] = nft.Element{}
	}
	t := nft.NewTable(nft.IP)
	t.Sets["blocked"] = blocked
	return t
}

// The difference of two tables is the batch that turns one into the other.
func ExampleDiff() {
	have, want := blocklist("192.0.2.1", "192.0.2.2"), blocklist("192.0.2.2", "192.0.2.3")
	for _, op := range change.Diff(nft.Tables{nft.IP: have}, nft.Tables{nft.IP: want}).Ops {
		fmt.Println(op.Text())
	}
	// Output:
	// delete element ip kube-nft blocked { 192.0.2.1 }
	// add element ip kube-nft blocked { 192.0.2.3 }
}
