package wire

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// TestSameAsLibrary compares our messages with those of google/nftables where both can write
// them: a table, chains, a rule and elements of the kinds that the library knows.
func TestSameAsLibrary(t *testing.T) {
	for _, f := range nft.Families {
		if diff := cmp.Diff(libraryMessages(t, f), ourMessages(t, f)); diff != "" {
			t.Errorf("%s (-library +ours):\n%s", f, diff)
		}
	}
}

// commonMaps are a map and a verdict map without typeof, counters and ranges.
func commonMaps() []*nft.Set {
	key := []nft.Field{nft.FieldAddr, nft.FieldProtocol, nft.FieldPort}
	return []*nft.Set{{Name: "map", Key: key, Data: []nft.Field{nft.FieldAddr}},
		{Name: "verdicts", Key: key, Verdicts: true}}
}

func commonElements(f nft.Family, s *nft.Set) (list []nft.KeyedElement) {
	for key, element := range nfttest.SampleElements(f, s, 7) {
		list = append(list, nft.KeyedElement{Key: key, Element: element})
	}
	slices.SortFunc(list, func(a, b nft.KeyedElement) int { return strings.Compare(a.Key, b.Key) })
	return list
}

func ourMessages(t *testing.T, f nft.Family) (messages []string) {
	base, other := &nft.Chain{Name: "before", Hook: &nft.Hook{Type: "nat", Point: "prerouting", Priority: -101}},
		&nft.Chain{Name: "other"}
	b := nft.Batch{Ops: []nft.Op{
		{Verb: nft.Add, Family: f, Table: &nft.Table{}},
		{Verb: nft.Add, Family: f, Chain: base},
		{Verb: nft.Add, Family: f, Chain: other},
		{Verb: nft.Add, Family: f, Chain: base, Rules: []nft.Rule{{nft.PortIs{Port: 80}, nft.Masquerade{}}}},
	}}
	for _, s := range commonMaps() {
		b.Ops = append(b.Ops, nft.Op{Verb: nft.Add, Family: f, Set: s, Elements: commonElements(f, s)})
	}
	for _, s := range commonMaps() {
		b.Ops = append(b.Ops, nft.Op{Verb: nft.Delete, Family: f, Set: s})
	}
	b.Ops = append(b.Ops, nft.Op{Verb: nft.Delete, Family: f, Chain: other},
		nft.Op{Verb: nft.Delete, Family: f, Table: &nft.Table{}})
	var x Encoding
	if err := x.Encode(&b, Ours, 1); err != nil {
		t.Fatal(err)
	}
	for i := range x.Messages() {
		msg := x.Message(i)
		messages = append(messages, messageTree(binary.NativeEndian.Uint16(msg[4:]), msg[attr.MessageHeader:]))
	}
	return messages
}

func libraryMessages(t *testing.T, f nft.Family) (messages []string) {
	conn, err := nftables.New(nftables.WithTestDial(func(req []netlink.Message) ([]netlink.Message, error) {
		for _, m := range req {
			if m.Header.Type>>8 == unix.NFNL_SUBSYS_NFTABLES {
				messages = append(messages, messageTree(uint16(m.Header.Type), m.Data))
			}
		}
		return nil, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	table := conn.AddTable(&nftables.Table{Name: nft.TableName, Family: nftables.TableFamily(f)})
	accept := nftables.ChainPolicyAccept
	base := conn.AddChain(&nftables.Chain{
		Name: "before", Table: table, Type: nftables.ChainTypeNAT, Policy: &accept,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(-101),
	})
	other := conn.AddChain(&nftables.Chain{Name: "other", Table: table})
	conn.AddRule(&nftables.Rule{Table: table, Chain: base, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Register: 1, Data: []byte{0, 80}}, &expr.Masq{FullyRandom: true},
	}})
	var sets []*nftables.Set
	for _, s := range commonMaps() {
		set := &nftables.Set{Table: table, Name: s.Name, IsMap: true}
		sets = append(sets, set)
		if err := conn.SetAddElements(set, libraryElements(f, s)); err != nil {
			t.Fatal(err)
		}
	}
	for _, set := range sets {
		conn.DelSet(set)
	}
	conn.DelChain(other)
	conn.DelTable(table)
	_ = conn.Flush() // the double gives no acknowledgements
	return messages
}

func libraryElements(f nft.Family, s *nft.Set) (list []nftables.SetElement) {
	for _, el := range commonElements(f, s) {
		element := nftables.SetElement{Key: []byte(el.Key), Comment: el.Comment}
		if s.Verdicts {
			element.VerdictData = &expr.Verdict{Kind: expr.VerdictKind(el.Verdict.Kind), Chain: el.Verdict.Chain}
		} else {
			element.Val = []byte(el.Data)
		}
		list = append(list, element)
	}
	return list
}

// messageTree prints a message with its attributes in no particular order. Left out are ids
// within the batch and the flags of a table that is deleted, which the library writes, and the
// numbers of list items, which it counts.
func messageTree(typ uint16, b []byte) string {
	var list []string
	head, b := b[:attr.NetfilterHeader], b[attr.NetfilterHeader:]
	attrs := attr.NewReader(b)
	for attrs.Next() {
		switch kind := typ & 0xff; {
		case kind == unix.NFT_MSG_NEWRULE && attrs.Type == ruleID:
		case kind == unix.NFT_MSG_DELTABLE && attrs.Type == unix.NFTA_TABLE_FLAGS:
		case kind == unix.NFT_MSG_NEWSETELEM && attrs.Type == unix.NFTA_SET_ELEM_LIST_SET_ID:
		case kind == unix.NFT_MSG_NEWSETELEM && attrs.Type == unix.NFTA_SET_ELEM_LIST_ELEMENTS:
			items := attr.NewReader(attrs.Value)
			for items.Next() {
				list = append(list, "element "+attributeTree(items.Value))
			}
		default:
			list = append(list, attributeText(b, &attrs))
		}
	}
	slices.Sort(list)
	return fmt.Sprintf("%#x %x\n%s", typ, head, strings.Join(list, "\n"))
}

const ruleID = 9 // NFTA_RULE_ID

func attributeTree(b []byte) string {
	var list []string
	attrs := attr.NewReader(b)
	for attrs.Next() {
		list = append(list, attributeText(b, &attrs))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func attributeText(list []byte, a *attr.Reader) string {
	if binary.NativeEndian.Uint16(list[a.At()+2:])&unix.NLA_F_NESTED != 0 {
		return fmt.Sprintf("%d{%s}", a.Type, attributeTree(a.Value))
	}
	return fmt.Sprintf("%d=%x", a.Type, a.Value)
}
