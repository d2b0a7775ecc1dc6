package packets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Attributes of the connection tracking table's messages
// (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctTupleOriginal = 1 // CTA_TUPLE_ORIG
	ctTupleReply    = 2 // CTA_TUPLE_REPLY
	ctTupleIP       = 1 // CTA_TUPLE_IP
	ctTupleProto    = 2 // CTA_TUPLE_PROTO
	ctSourceIPv4    = 1 // CTA_IP_V4_SRC
	ctDestIPv4      = 2 // CTA_IP_V4_DST
	ctSourceIPv6    = 3 // CTA_IP_V6_SRC
	ctDestIPv6      = 4 // CTA_IP_V6_DST
	ctProtoNumber   = 1 // CTA_PROTO_NUM
	ctSourcePort    = 2 // CTA_PROTO_SRC_PORT
	ctDestPort      = 3 // CTA_PROTO_DST_PORT
)

// nfgenmsgLen is the length of the header that follows netlink's own (struct nfgenmsg).
const nfgenmsgLen = 4

// A trackedTable is the connection tracking table of a namespace at one moment. It is
// read with code of the test's own, so that no fault of the product's can hide in it.
type trackedTable struct {
	translated map[tuple]tuple // a connection's first packet as sent: as it went on
	original   map[tuple]tuple // the inverse
}

// readTracked reads the connection tracking table of the current namespace, both families.
func readTracked() (trackedTable, error) {
	table := trackedTable{translated: map[tuple]tuple{}, original: map[tuple]tuple{}}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return table, fmt.Errorf("list tracked connections: %w", err)
	}
	defer conn.Close()
	messages, err := conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  unix.NFNL_SUBSYS_CTNETLINK<<8 | 1, // IPCTNL_MSG_CT_GET
			Flags: netlink.Request | netlink.Dump,
		},
		Data: make([]byte, nfgenmsgLen), // AF_UNSPEC: both families
	})
	if err != nil {
		return table, fmt.Errorf("list tracked connections: %w", err)
	}
	for _, m := range messages {
		sent, reply, err := parseTracked(m.Data)
		if err != nil {
			return table, fmt.Errorf("read tracked connection: %w", err)
		}
		table.add(sent, reply.reverse())
	}
	return table, nil
}

// add records that packets sent as sent go on as translated.
func (c trackedTable) add(sent, translated tuple) {
	c.translated[sent] = translated
	c.original[translated] = sent
}

// parseTracked reads one entry of the table: the tuple of the packets that the client
// sends, and of those that it expects the answers to come in.
func parseTracked(data []byte) (sent, reply tuple, err error) {
	if len(data) < nfgenmsgLen {
		return sent, reply, errors.New("message without header")
	}
	attributes, err := netlink.NewAttributeDecoder(data[nfgenmsgLen:])
	if err != nil {
		return sent, reply, err
	}
	for attributes.Next() {
		switch attributes.Type() {
		case ctTupleOriginal:
			attributes.Nested(sent.parse)
		case ctTupleReply:
			attributes.Nested(reply.parse)
		}
	}
	return sent, reply, attributes.Err()
}

// parse reads a tuple from the attributes of an entry.
func (t *tuple) parse(attributes *netlink.AttributeDecoder) error {
	for attributes.Next() {
		switch attributes.Type() {
		case ctTupleIP:
			attributes.Nested(t.parseAddresses)
		case ctTupleProto:
			attributes.Nested(t.parseProtocol)
		}
	}
	return attributes.Err()
}

// parseAddresses reads the addresses of a tuple.
func (t *tuple) parseAddresses(attributes *netlink.AttributeDecoder) error {
	for attributes.Next() {
		addr, ok := netip.AddrFromSlice(attributes.Bytes())
		if !ok {
			return errors.New("address of a wrong length")
		}
		switch attributes.Type() {
		case ctSourceIPv4, ctSourceIPv6:
			t.src = netip.AddrPortFrom(addr, t.src.Port())
		case ctDestIPv4, ctDestIPv6:
			t.dst = netip.AddrPortFrom(addr, t.dst.Port())
		}
	}
	return attributes.Err()
}

// parseProtocol reads the protocol of a tuple and, where it has some, the ports.
func (t *tuple) parseProtocol(attributes *netlink.AttributeDecoder) error {
	attributes.ByteOrder = binary.BigEndian
	for attributes.Next() {
		switch attributes.Type() {
		case ctProtoNumber:
			t.proto = attributes.Uint8()
		case ctSourcePort:
			t.src = netip.AddrPortFrom(t.src.Addr(), attributes.Uint16())
		case ctDestPort:
			t.dst = netip.AddrPortFrom(t.dst.Addr(), attributes.Uint16())
		}
	}
	return attributes.Err()
}

func FuzzParseTracked(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 8, 0, 1, 128, 4, 0, 1, 128})
	f.Fuzz(func(_ *testing.T, data []byte) { parseTracked(data) }) // must not panic
}
