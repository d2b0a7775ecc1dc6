package nft

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// elementKinds are the kinds of sets whose elements are held against nft's listing: how
// they wrap and sort depends on the key.
func elementKinds(f Family) []*Set {
	kinds := append(statementSets(),
		&Set{Name: "addresses-counted", Key: []Field{FieldAddr}, Counters: true},
		&Set{Name: "address-verdicts", Key: []Field{FieldAddr}, Verdicts: true},
		&Set{Name: "address-map", Key: []Field{FieldAddr}, Data: []Field{FieldAddr}},
		&Set{Name: "port-map", Key: []Field{FieldPort}, Data: []Field{FieldAddr}},
	)
	return kinds
}

// sampleElements makes up to n elements of a set, with addresses and ports whose order as
// numbers differs from that of their bytes.
func sampleElements(f Family, s *Set, n int) map[string]Element {
	elements := make(map[string]Element)
	for i := range n {
		var first, last []byte
		for j, field := range s.Key {
			a, b := sampleField(f, field, i+j, j == len(s.Key)-1)
			pad := make([]byte, field.padded(f, len(s.Key) > 1)-len(a))
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
func sampleField(f Family, field Field, i int, ranged bool) (first, last []byte) {
	octets := []byte{200, 10, 9, 192, 172, 1, 250}
	switch field {
	case FieldAddr:
		return sampleAddr(f, octets[i%7], i, ranged)
	case FieldProtocol:
		b := []byte{[]byte{132, 17, 6}[i%3]}
		return b, b
	case FieldPort:
		b := appendPort(nil, []uint16{80, 8080, 9, 443, 53, 65535, 256}[i%7])[:2]
		return b, b
	default:
		b := hostOrder(uint32([]int{0, 1, 256, 10, 2, 65535, 3}[i%7]))
		return b, b
	}
}

func sampleAddr(f Family, octet byte, i int, ranged bool) (first, last []byte) {
	addr := netip.AddrFrom4([4]byte{octet, 0, 0, byte(i)})
	if f == IP6 {
		addr = netip.AddrFrom16([16]byte{0xfd, 14: octet, 15: byte(i)})
	}
	bits := addr.BitLen() - 8*(i%2) // a single address, or the 256 around it
	if !ranged {
		bits = addr.BitLen()
	}
	p := netip.PrefixFrom(addr, bits).Masked()
	return p.Addr().AsSlice(), lastAddr(p).AsSlice()
}

func sampleElement(f Family, s *Set, i int) (el Element) {
	switch {
	case s.Verdicts:
		el.Verdict = []*Verdict{&Drop, gotoChain("other"), {VerdictJump, "other"}}[i%3]
	case len(s.Data) == 1:
		el.Data = string(netip.IPv6Loopback().AsSlice()[16-addrLen(f):])
	case len(s.Data) == 2:
		addr := netip.MustParseAddr("10.1.2.3")
		if f == IP6 {
			addr = netip.MustParseAddr("fd00::123")
		}
		el.Data = endpointData(netip.AddrPortFrom(addr, uint16(8000+i)))
	}
	if i%2 == 0 {
		el.Comment = fmt.Sprintf("shop/cart-%d:http", i)
	}
	return el
}

// sampleTables hold one set of every kind, of n elements each.
func sampleTables(n int) Tables {
	tables := make(Tables)
	for _, f := range Families {
		t := NewTable(f)
		t.Chains["other"] = &Chain{Name: "other"}
		for _, s := range elementKinds(f) {
			t.Sets[s.Name] = &Elements{Set: s, Map: map[string]Element{}}
			if !s.Dynamic {
				t.Sets[s.Name].Map = sampleElements(f, s, n)
			}
		}
		tables[f] = t
	}
	return tables
}

// TestElementsInKernel holds order, line breaks, comments and data of elements of every kind
// of set against nft's listing, and what the kernel reads back against what was written.
func TestElementsInKernel(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			lab.New(t)
			k := openKernel(t)
			tables := sampleTables(n)
			checkTriangle(t, k, tables)
			checkRead(t, k, tables) // as nft has written it
			lab.Run(t, "", "nft", "flush", "ruleset")
			commit(t, k, creation(tables))
			checkRead(t, k, tables) // as we have
		})
	}
}

// checkRead reads the tables back and compares them with what they should be.
func checkRead(t *testing.T, k *Kernel, want Tables) {
	t.Helper()
	got, generation, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if now, err := k.Generation(t.Context()); err != nil || now != generation {
		t.Errorf("generation %d, now %d (%v)", generation, now, err)
	}
	sameRules := cmp.Options{
		cmp.Comparer(func(a, b Rule) bool { return a.Equal(IP, b) || a.Equal(IP6, b) }),
		cmp.Comparer(Element.Equal),
	}
	if diff := cmp.Diff(want, got, sameRules); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestReadStatements(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	checkRead(t, k, Tables{})
	commit(t, k, creation(statementTables()))
	checkRead(t, k, statementTables())
}

// TestRangesInKernel holds single-field ranges against nft: at both ends of the address
// space, touching, and of lengths that are no prefix.
func TestRangesInKernel(t *testing.T) {
	for _, ranges := range []map[Family][]string{
		{IP: {"0.0.0.0-255.255.255.255"}, IP6: {"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}},
		{IP: {"0.0.0.0-0.0.0.0", "224.0.0.0-255.255.255.255"}, IP6: {"::-::", "ff00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}},
		{IP: {"10.0.0.0-10.0.0.255", "10.0.1.0-10.0.1.255", "10.0.3.4-10.0.3.7", "10.0.3.9-10.0.3.12"},
			IP6: {"fd00::-fd00::ff", "fd00::100-fd00::1ff", "fd00::fff4-fd00::fff5"}},
	} {
		t.Run(ranges[IP][0], func(t *testing.T) {
			lab.New(t)
			k := openKernel(t)
			tables := make(Tables)
			for _, f := range Families {
				tables[f] = rangeTable(f, ranges[f])
			}
			checkTriangle(t, k, tables)
			checkRead(t, k, tables)
			commit(t, k, deletion(tables))
			for _, table := range tables {
				table.Sets["prefixes"].Map = map[string]Element{}
			}
			checkRead(t, k, tables)
		})
	}
}

func rangeTable(f Family, ranges []string) *Table {
	t := NewTable(f)
	elements := &Elements{Set: &Set{Name: "prefixes", Key: []Field{FieldAddr}, Interval: true}, Map: map[string]Element{}}
	for _, r := range ranges {
		first, last, _ := strings.Cut(r, "-")
		elements.Map[addrKey(netip.MustParseAddr(first))+addrKey(netip.MustParseAddr(last))] = Element{}
	}
	t.Sets["prefixes"] = elements
	return t
}

// deletion is the batch that takes all elements out.
func deletion(tables Tables) (b Batch) {
	for _, op := range creation(tables).Ops {
		if op.Elements != nil {
			op.Verb = Delete
			b.Ops = append(b.Ops, op)
		}
	}
	return b
}

func TestDeleteElementsInKernel(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	commit(t, k, creation(sampleTables(7)))
	commit(t, k, deletion(sampleTables(7)))
	checkRead(t, k, sampleTables(0))
}

func TestElementsThatExpire(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	set := &Set{Name: "affinity-x-8080", Key: []Field{FieldAddr}, Data: []Field{FieldAddr}, Dynamic: true, Size: 65536}
	commit(t, k, Batch{Ops: []Op{
		{Verb: Add, Family: IP, Table: NewTable(IP)},
		{Verb: Add, Family: IP, Set: set},
		{Verb: Add, Family: IP, Set: set, Elements: []KeyedElement{
			{"\x0a\x00\x00\x01", Element{Data: "\x0a\x00\x00\x02", Life: &Life{Timeout: 3 * time.Hour, Expires: time.Hour}}},
			{"\x0a\x00\x00\x02", Element{Data: "\x0a\x00\x00\x02", Life: &Life{Timeout: 3 * time.Hour}}},
		}},
	}})
	got, err := k.Elements(t.Context(), IP, set)
	if err != nil {
		t.Fatal(err)
	}
	for key, atMost := range map[string]time.Duration{"\x0a\x00\x00\x01": time.Hour, "\x0a\x00\x00\x02": 3 * time.Hour} {
		el := got[key]
		if el.Data != "\x0a\x00\x00\x02" || el.Life == nil {
			t.Fatalf("%q: got %+v", key, el)
		}
		if el.Life.Timeout != 3*time.Hour || el.Life.Expires > atMost || el.Life.Expires < atMost-time.Minute {
			t.Errorf("%q: lives %v of %v, want about %v", key, el.Life.Expires, el.Life.Timeout, atMost)
		}
	}
}
