package wire

import (
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/change"
)

// DecodeEvent decodes a notification. Objects and flowtables, which have no effect without a rule,
// become an event without an object.
func DecodeEvent(typ uint16, f nft.Family, attrs []byte) (e change.Event) {
	e.Op = nft.Op{Verb: nft.Add, Family: f}
	switch typ {
	case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET, unix.NFT_MSG_DELSETELEM:
		e.Verb = nft.Delete
	}
	switch typ {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		_, e.Table = DecodeTable(f, attrs)
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		_, e.Chain = DecodeChain(attrs)
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		_, chain, rule := DecodeRule(attrs)
		e.Chain, e.Rules = &nft.Chain{Name: chain}, []nft.Rule{rule}
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET:
		_, e.Set = DecodeSet(f, attrs)
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		e.Set = &nft.Set{Name: attr.Name(attr.Find(attrs, unix.NFTA_SET_ELEM_LIST_SET))}
		e.Listed = []change.ListedElement{}
		decoder := ElementDecoder{verdicts: make(map[string]*nft.Verdict)}
		items := attr.NewReader(attr.Find(attrs, unix.NFTA_SET_ELEM_LIST_ELEMENTS))
		for items.Next() {
			listed, _ := decoder.element(items.Value)
			e.Listed = append(e.Listed, listed)
		}
	}
	return e
}

// DecodeGeneration returns the number of a generation, and the thread that committed it if the message says so.
func DecodeGeneration(b []byte) (generation, pid uint32, program string) {
	attrs := attr.NewReader(b)
	for attrs.Next() {
		switch attrs.Type {
		case unix.NFTA_GEN_ID:
			generation = attrs.Uint32()
		case attrGenProcPID:
			pid = attrs.Uint32()
		case attrGenProcName:
			program = attrs.Name()
		}
	}
	return generation, pid, program
}
