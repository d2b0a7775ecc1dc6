package nfttest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
)

// FrontendSet maps frontends to verdicts. EndpointSet maps frontends with an index to addresses and
// ports.
var (
	FrontendSet = nft.Set{Name: "services", Key: []nft.Field{nft.FieldAddr, nft.FieldProtocol, nft.FieldPort},
		Verdicts: true}
	EndpointSet = nft.Set{Name: "endpoints", Key: append(FrontendSet.Key[:3:3], nft.FieldIndex),
		Data: []nft.Field{nft.FieldAddr, nft.FieldPort}}
)

// Frontends makes up n elements of FrontendSet in the family ip.
func Frontends(n int, verdict nft.Verdict) []nft.KeyedElement {
	list := make([]nft.KeyedElement, n)
	for i := range list {
		key := binary.BigEndian.AppendUint32(nil, 10<<24+uint32(i))
		list[i] = nft.KeyedElement{
			Key:     string(append(key, "\x06\x00\x00\x00\x00\x50\x00\x00"...)),
			Element: nft.Element{Verdict: &verdict, Comment: fmt.Sprintf("shop/cart-%d:http", i)},
		}
	}
	return list
}

// FrontendBatch makes a table with a verdict map of n elements; its fourth operation adds them.
func FrontendBatch(n int, verdict nft.Verdict) nft.Batch {
	b := nft.Batch{Ops: []nft.Op{
		{Verb: nft.Add, Family: nft.IP, Table: nft.NewTable(nft.IP)},
		{Verb: nft.Add, Family: nft.IP, Set: &FrontendSet},
		{Verb: nft.Add, Family: nft.IP, Chain: &nft.Chain{Name: "other"}},
	}}
	if n > 0 {
		b.Ops = append(b.Ops, nft.Op{Verb: nft.Add, Family: nft.IP, Set: &FrontendSet, Elements: Frontends(n, verdict)})
	}
	return b
}

// EndpointBatch makes a frontend for each length, with a list of that length.
func EndpointBatch(lengths ...int) nft.Batch {
	b := FrontendBatch(len(lengths), nft.Goto("other"))
	var list []nft.KeyedElement
	for i, frontend := range b.Ops[3].Elements {
		for index := range lengths[i] {
			data := binary.BigEndian.AppendUint32(nil, 172<<24+uint32(len(list)))
			list = append(list, nft.KeyedElement{Key: nft.IndexedKey(frontend.Key, index),
				Element: nft.Element{Data: string(append(data, 0x1f, 0x90, 0, 0))}})
		}
	}
	b.Ops = append(b.Ops,
		nft.Op{Verb: nft.Add, Family: nft.IP, Set: &EndpointSet},
		nft.Op{Verb: nft.Add, Family: nft.IP, Set: &EndpointSet, Elements: list})
	return b
}

// TableOf returns the table, without its chains, that a batch in the family ip makes from nothing.
func TableOf(b nft.Batch) *nft.Table {
	t := nft.NewTable(nft.IP)
	for _, op := range b.Ops {
		if op.Elements == nil {
			continue
		}
		held := make(map[string]nft.Element, len(op.Elements))
		for _, el := range op.Elements {
			held[el.Key] = el.Element
		}
		t.Sets[op.Set.Name] = &nft.Elements{Set: op.Set, Map: held}
	}
	return t
}

// Comments must not reach the kernel unchanged.
var Comments = []string{"", "shop/cart:http", `a" ; flush ruleset ; "`, "a\nb", `\"`, strings.Repeat("é\"", 200),
	"\x00\x7f\xff"}

// AddrPortData is an address and port as the data of a map.
func AddrPortData(ep netip.AddrPort) string {
	return string(nft.AppendPort(nft.AppendAddr(nil, ep.Addr()), ep.Port()))
}
