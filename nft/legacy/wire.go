package legacy

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// genmsgLen is the length of struct nfgenmsg, which precedes the attributes of every
// message to or from netfilter.
const genmsgLen = 4

// attributes calls each for every attribute of a list. Numbers are in network order.
func attributes(data []byte, each func(d *netlink.AttributeDecoder) error) error {
	d, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return err
	}
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		if err := each(d); err != nil {
			return err
		}
	}
	return d.Err()
}

// payload returns the attributes of a message from netfilter.
func payload(m netlink.Message) ([]byte, error) {
	if len(m.Data) < genmsgLen {
		return nil, fmt.Errorf("a message of %d bytes", len(m.Data))
	}
	return m.Data[genmsgLen:], nil
}

// A wireChain is a chain as nf_tables lists it.
type wireChain struct {
	table, name string
	base, drops bool   // drops: a base chain of that policy
	use         uint32 // its rules, and whatever sends to it
}

// decodeChain reads a chain from the attributes of NFT_MSG_NEWCHAIN.
func decodeChain(data []byte) (c wireChain, err error) {
	err = attributes(data, func(d *netlink.AttributeDecoder) error {
		switch d.Type() {
		case unix.NFTA_CHAIN_TABLE:
			c.table = d.String()
		case unix.NFTA_CHAIN_NAME:
			c.name = d.String()
		case unix.NFTA_CHAIN_HOOK:
			c.base = true
		case unix.NFTA_CHAIN_POLICY:
			c.drops = d.Uint32() == verdictDrop
		case unix.NFTA_CHAIN_USE:
			c.use = d.Uint32()
		}
		return nil
	})
	return c, err
}

// A wireRule is a rule as nf_tables lists it.
type wireRule struct {
	table, chain string
	handle       uint64
	rule         rule
}

// decodeRule reads a rule from the attributes of NFT_MSG_NEWRULE.
func decodeRule(data []byte) (r wireRule, err error) {
	r.rule.plain = true
	err = attributes(data, func(d *netlink.AttributeDecoder) error {
		switch d.Type() {
		case unix.NFTA_RULE_TABLE:
			r.table = d.String()
		case unix.NFTA_RULE_CHAIN:
			r.chain = d.String()
		case unix.NFTA_RULE_HANDLE:
			r.handle = d.Uint64()
		case unix.NFTA_RULE_EXPRESSIONS:
			return attributes(d.Bytes(), func(d *netlink.AttributeDecoder) error {
				return r.rule.addExpression(d.Bytes())
			})
		}
		return nil
	})
	return r, err
}

// addExpression takes note of one expression of the rule. Those it does not know are
// conditions, and tell only that the rule is not a plain jump.
func (r *rule) addExpression(data []byte) error {
	var name string
	var params []byte
	err := attributes(data, func(d *netlink.AttributeDecoder) error {
		switch d.Type() {
		case unix.NFTA_EXPR_NAME:
			name = d.String()
		case unix.NFTA_EXPR_DATA:
			params = d.Bytes()
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case name == "immediate":
		return r.addImmediate(params)
	case name == "match":
		return r.addMatch(params)
	case name == "ct":
		r.plain = r.plain && isConnectionState(params)
	case name != "counter" && name != "bitwise" && name != "cmp":
		r.plain = false // bitwise and cmp only judge what another expression has loaded
	}
	return nil
}

// isConnectionState reports whether an expression loads ct state, which is how a rule asks
// for it without an extension.
func isConnectionState(data []byte) bool {
	key := attribute(data, unix.NFTA_CT_KEY)
	return len(key) == 4 && binary.BigEndian.Uint32(key) == unix.NFT_CT_STATE
}

// addImmediate notes the chain that an immediate verdict names, if it is one and does.
func (r *rule) addImmediate(data []byte) error {
	descend := []uint16{unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT}
	for _, typ := range descend {
		data = attribute(data, typ)
	}
	if name := attribute(data, unix.NFTA_VERDICT_CHAIN); name != nil {
		r.target = text(name, len(name))
	}
	return nil
}

// addMatch notes an extension of x_tables.
func (r *rule) addMatch(data []byte) error {
	name := attribute(data, unix.NFTA_MATCH_NAME)
	switch text(name, len(name)) {
	case "comment":
		comment := attribute(data, unix.NFTA_MATCH_INFO)
		r.comment = text(comment, len(comment))
	case "conntrack", "state":
	default:
		r.plain = false
	}
	return nil
}

// attribute returns the value of the last attribute of a type; nil if there is none.
func attribute(data []byte, typ uint16) (value []byte) {
	_ = attributes(data, func(d *netlink.AttributeDecoder) error { // the kernel's, or nothing
		if d.Type() == typ {
			value = d.Bytes()
		}
		return nil
	})
	return value
}

// An encoder is a list of attributes in the making.
type encoder struct{ *netlink.AttributeEncoder }

// newEncoder returns an empty list.
func newEncoder() encoder {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	return encoder{e}
}

// message returns a message to a subsystem of netfilter. It cannot fail: names are at
// most 255 bytes long.
func (e encoder) message(kind uint16, flags netlink.HeaderFlags, family nft.Family) netlink.Message {
	attributes, _ := e.Encode()
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | flags},
		Data:   append([]byte{byte(family), 0, 0, 0}, attributes...),
	}
}

// nfTables returns the type of a message of nf_tables.
func nfTables(command uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | command }

// dump asks for a listing and calls each with the attributes of every object. It returns
// EINTR if the kernel's state changed meanwhile.
func dump(c *netlink.Conn, request netlink.Message, each func(data []byte) error) error {
	request.Header.Flags |= netlink.Dump
	replies, err := c.Execute(request)
	if err != nil {
		return err
	}
	for _, m := range replies {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return unix.EINTR
		}
		data, err := payload(m)
		if err != nil {
			return err
		}
		if err := each(data); err != nil {
			return err
		}
	}
	return nil
}
