package wire

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// DecodeTable returns the table without its content.
func DecodeTable(f nft.Family, b []byte) (name string, t *nft.Table) {
	t = &nft.Table{Family: f, Sets: make(map[string]*nft.Elements), Chains: make(map[string]*nft.Chain)}
	attrs := attr.NewReader(b)
	var flags, owner uint32
	for attrs.Next() {
		switch attrs.Type {
		case unix.NFTA_TABLE_NAME:
			name = attrs.Name()
		case unix.NFTA_TABLE_FLAGS:
			flags = attrs.Uint32()
		case attrTableOwner:
			owner = attrs.Uint32()
		case attrTableUserdata:
			t.Comment = string(decodeComment(attrs.Value))
		}
	}
	t.Owned = flags&TablePersist != 0
	t.Orphaned = t.Owned && owner == 0
	if odd := flags &^ (TableOwner | TablePersist); odd != 0 {
		t.Comment += fmt.Sprintf(" (flags %#x)", odd) // dormant, for example
	}
	return name, t
}

// decodeComment finds the comment in the userdata of a table or an element. google/nftables has userdata.Get for
// this, which slices before it compares the length: it panics on hostile bytes.
func decodeComment(b []byte) []byte {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		value := b[2 : 2+int(b[1])]
		if b[0] == 0 { // the comment, in both
			if n := len(value); n > 0 && value[n-1] == 0 {
				value = value[:n-1]
			}
			return value
		}
		b = b[2+len(value):]
	}
	return nil
}

// DecodeChain returns the chain without rules. A base chain with a policy other than accept has the
// policy in its type, so it equals none of ours.
func DecodeChain(b []byte) (table string, c *nft.Chain) {
	c = &nft.Chain{}
	var typ string
	policy := uint32(expr.VerdictAccept)
	attrs := attr.NewReader(b)
	for attrs.Next() {
		switch attrs.Type {
		case unix.NFTA_CHAIN_TABLE:
			table = attrs.Name()
		case unix.NFTA_CHAIN_NAME:
			c.Name = attrs.Name()
		case unix.NFTA_CHAIN_HOOK:
			c.Hook = decodeHook(attrs.Value)
		case unix.NFTA_CHAIN_POLICY:
			policy = attrs.Uint32()
		case unix.NFTA_CHAIN_TYPE:
			typ = attrs.Name()
		}
	}
	if c.Hook != nil {
		c.Hook.Type = typ
		if policy != uint32(expr.VerdictAccept) {
			c.Hook.Type += fmt.Sprintf(" (policy %d)", policy)
		}
	}
	return table, c
}

func decodeHook(b []byte) *nft.Hook {
	h := &nft.Hook{Point: "unknown"}
	attrs := attr.NewReader(b)
	for attrs.Next() {
		switch attrs.Type {
		case unix.NFTA_HOOK_HOOKNUM:
			for name, number := range hookNumbers {
				if number == attrs.Uint32() {
					h.Point = name
				}
			}
		case unix.NFTA_HOOK_PRIORITY:
			h.Priority = int32(attrs.Uint32())
		}
	}
	return h
}

// DecodeRule returns a rule as the kernel holds it.
func DecodeRule(b []byte) (table, chain string, rule nft.Rule) {
	rule = nft.Rule{nft.Raw{}}
	attrs := attr.NewReader(b)
	for attrs.Next() {
		switch attrs.Type {
		case unix.NFTA_RULE_TABLE:
			table = attrs.Name()
		case unix.NFTA_RULE_CHAIN:
			chain = attrs.Name()
		case unix.NFTA_RULE_EXPRESSIONS:
			rule = nft.Rule{nft.Raw{Expressions: string(attrs.Value)}}
		}
	}
	return table, chain, rule
}

// DecodeSet returns the definition of a set. Key is empty if a Set cannot describe it: its kind,
// its flags, or what the kernel does with its elements.
func DecodeSet(f nft.Family, b []byte) (table string, s *nft.Set) {
	s = &nft.Set{}
	var flags, keyType, keyLen, dataType, dataLen uint32
	odd := false // no set of ours is like it
	attrs := attr.NewReader(b)
	for attrs.Next() {
		switch attrs.Type {
		case unix.NFTA_SET_TABLE:
			table = attrs.Name()
		case unix.NFTA_SET_NAME:
			s.Name = attrs.Name()
		case unix.NFTA_SET_FLAGS:
			flags = attrs.Uint32()
		case unix.NFTA_SET_KEY_TYPE:
			keyType = attrs.Uint32()
		case unix.NFTA_SET_KEY_LEN:
			keyLen = attrs.Uint32()
		case unix.NFTA_SET_DATA_TYPE:
			dataType = attrs.Uint32()
		case unix.NFTA_SET_DATA_LEN:
			dataLen = attrs.Uint32()
		case unix.NFTA_SET_DESC:
			s.Size = attr.Uint32(attr.Find(attrs.Value, unix.NFTA_SET_DESC_SIZE))
		case attrSetExpr:
			s.Counters = string(attr.Find(attrs.Value, unix.NFTA_EXPR_NAME)) == "counter\x00"
			odd = odd || !s.Counters
		case attrSetExpressions, unix.NFTA_SET_TIMEOUT, unix.NFTA_SET_GC_INTERVAL:
			odd = true
		}
	}
	s.Key, s.Data, s.Verdicts = fieldsOf(f, keyType), fieldsOf(f, dataType), dataType == unix.NFT_DATA_VERDICT
	s.Interval, s.Dynamic = flags&unix.NFT_SET_INTERVAL != 0, flags&unix.NFT_SET_EVAL != 0
	if odd || setFlags(s) != flags || s.KeyLen(f) != int(keyLen) || s.IsMap() && dataLenOnWire(s, f) != dataLen {
		s.Key, s.Data = nil, nil
	}
	return table, s
}

// SetCount returns how many elements a listed set holds. The kernel says so from about Linux 6.16 on.
func SetCount(b []byte) (n uint32, ok bool) {
	count := attr.Find(b, attrSetCount)
	if len(count) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(count), true
}

// fieldsOf turns nft's type number back into fields; nil if one of them is not ours.
func fieldsOf(f nft.Family, typ uint32) (fields []nft.Field) {
	if typ == unix.NFT_DATA_VERDICT {
		return nil
	}
	ours := []nft.Field{nft.FieldAddr, nft.FieldProtocol, nft.FieldPort, nft.FieldIndex}
	for ; typ != 0; typ >>= typeBits {
		i := slices.IndexFunc(ours, func(d nft.Field) bool { return dataType(d, f) == typ&(1<<typeBits-1) })
		if i < 0 {
			return nil
		}
		fields = append(fields, ours[i])
	}
	slices.Reverse(fields)
	return fields
}
