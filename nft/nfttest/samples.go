package nfttest

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/kube-nft/kube-nft/nft"
)

// ElementKinds are the kinds of sets whose elements are held against nft's listing: how
// they wrap and sort depends on the key.
func ElementKinds(f nft.Family) []*nft.Set {
	kinds := append(StatementSets(f),
		&nft.Set{Name: "addresses-counted", Key: []nft.Field{nft.FieldAddr}, Counters: true},
		&nft.Set{Name: "address-verdicts", Key: []nft.Field{nft.FieldAddr}, Verdicts: true},
		&nft.Set{Name: "address-map", Key: []nft.Field{nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr}},
		&nft.Set{Name: "port-map", Key: []nft.Field{nft.FieldPort}, Data: []nft.Field{nft.FieldAddr}},
	)
	return kinds
}

// SampleElements makes up to n elements of a set, with addresses and ports whose order as
// numbers differs from that of their bytes.
func SampleElements(f nft.Family, s *nft.Set, n int) map[string]nft.Element {
	elements := make(map[string]nft.Element)
	for i := range n {
		var first, last []byte
		for j, field := range s.Key {
			a, b := sampleField(f, field, i+j, j == len(s.Key)-1)
			var pad []byte
			if len(s.Key) > 1 {
				pad = make([]byte, -len(a)&3)
			}
			first, last = append(append(first, a...), pad...), append(append(last, b...), pad...)
		}
		key := string(first)
		if s.Interval {
			key += string(last)
		}
		elements[key] = sampleElement(f, s, i)
	}
	return elements
}

// sampleField makes up a value and the end of the range that begins there; only the last
// field of a key is a range.
func sampleField(f nft.Family, field nft.Field, i int, ranged bool) (first, last []byte) {
	octets := []byte{200, 10, 9, 192, 172, 1, 250}
	switch field {
	case nft.FieldAddr:
		return sampleAddr(f, octets[i%7], i, ranged)
	case nft.FieldProtocol:
		b := []byte{[]byte{132, 17, 6}[i%3]}
		return b, b
	case nft.FieldPort:
		b := nft.AppendPort(nil, []uint16{80, 8080, 9, 443, 53, 65535, 256}[i%7])[:2]
		return b, b
	default:
		b := binary.NativeEndian.AppendUint32(nil, []uint32{0, 1, 256, 10, 2, 65535, 3}[i%7])
		return b, b
	}
}

func sampleAddr(f nft.Family, octet byte, i int, ranged bool) (first, last []byte) {
	addr := netip.AddrFrom4([4]byte{octet, 0, 0, byte(i)})
	if f == nft.IP6 {
		addr = netip.AddrFrom16([16]byte{0xfd, 14: octet, 15: byte(i)})
	}
	bits := addr.BitLen() - 8*(i%2) // a single address, or the 256 around it
	if !ranged {
		bits = addr.BitLen()
	}
	ends := []byte(nft.RangeKey("", netip.PrefixFrom(addr, bits)))
	return ends[:len(ends)/2], ends[len(ends)/2:]
}

func sampleElement(f nft.Family, s *nft.Set, i int) (el nft.Element) {
	switch {
	case s.Verdicts:
		el.Verdict = []*nft.Verdict{&nft.Drop, {Kind: nft.VerdictGoto, Chain: "other"},
			{Kind: nft.VerdictJump, Chain: "other"}}[i%3]
	case len(s.Data) == 1 && s.Data[0] == nft.FieldPort:
		el.Data = nft.PortData(uint16(8000 + i))
	case len(s.Data) == 1:
		el.Data = string(netip.IPv6Loopback().AsSlice()[16-nft.AddrLen(f):])
	case len(s.Data) == 2:
		addr := netip.MustParseAddr("10.1.2.3")
		if f == nft.IP6 {
			addr = netip.MustParseAddr("fd00::123")
		}
		el.Data = AddrPortData(netip.AddrPortFrom(addr, uint16(8000+i)))
	}
	if i%2 == 0 {
		el.Comment = fmt.Sprintf("shop/cart-%d:http", i)
	}
	return el
}

// SampleTables hold one set of every kind, of n elements each.
func SampleTables(n int) nft.Tables {
	tables := make(nft.Tables)
	for _, f := range nft.Families {
		t := nft.NewTable(f)
		t.Chains["other"] = &nft.Chain{Name: "other"}
		for _, s := range ElementKinds(f) {
			t.Sets[s.Name] = &nft.Elements{Set: s, Map: map[string]nft.Element{}}
			if !s.Dynamic {
				t.Sets[s.Name].Map = SampleElements(f, s, n)
			}
		}
		tables[f] = t
	}
	return tables
}
