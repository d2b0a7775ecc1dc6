package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// A PacketFilter selects first packets of connections. Zero fields select everything.
type PacketFilter struct {
	Family      nft.Family
	Source      netip.Prefix
	Destination netip.Addr
	Protocol    uint8  // IANA number
	Port        uint16 // of the destination; needs Protocol
}

// A PacketEvent is one step of a packet through the chains of nf_tables, of any table.
type PacketEvent struct {
	// ID is the same for all steps of a packet on its way through the host.
	ID           uint32
	Family       nft.Family
	Table, Chain string
	// Handle is the rule's, 0 if the chain's policy or end decided.
	Handle  uint64
	Verdict nft.Verdict
	// Policy says that the base chain's policy decided.
	Policy bool
	// Source and Destination are the packet's at this hook, and Protocol its IANA number. The kernel gives them with the
	// first step in each base chain; they are the zero value otherwise.
	Source, Destination netip.AddrPort
	Protocol            uint8
	// In and Out are numbers of interfaces, 0 where there is none.
	In, Out uint32
}

// A PacketTracer lets the kernel tell the steps of packets that filters select (nf_tables' own tracing, meta nftrace).
// It is for one goroutine.
//
// What it needs in the kernel stands in a table of its own, which belongs to its socket: the kernel removes the table
// with the socket, however the process ends.
type PacketTracer struct {
	client *Client
	conn   *netlink.Conn
	events []PacketEvent
}

// TracePrefix begins the names of the tables of tracers.
const TracePrefix = "kube-nft-trace-"

// traceTable is the table of a tracer in each family. Its name has the port of its socket, so that two tracers do not
// meet.
const traceTable = TracePrefix + "%d"

// tracePriority comes after connection tracking at -200, which knows first packets, and before all that
// usually filters and translates.
const tracePriority = -199

// traceBuffer is the length of the receive buffer in bytes.
const traceBuffer = 4 << 20

// NewPacketTracer begins to trace what any of the filters selects, in the network namespace of the calling thread, for
// at most rate first packets a second for each filter. It needs Linux 5.12, and CAP_NET_ADMIN.
func NewPacketTracer(ctx context.Context, filters []PacketFilter, rate uint64) (p *PacketTracer, err error) {
	client, err := Open()
	if err != nil {
		return nil, err
	}
	p = &PacketTracer{client: client}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("trace packets: %w%s", err, accessRemedy(err)), p.Close())
		}
	}()
	if p.conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
		return p, err
	}
	if p.conn.SetReadBuffer(traceBuffer) != nil { // smaller ones lose packets earlier, and say so
		return p, errors.New("the receive buffer cannot be set")
	}
	if err := p.conn.JoinGroup(unix.NFNLGRP_NFTRACE); err != nil {
		return p, err
	}
	batch, err := traceBatch(filters, rate)
	if err != nil {
		return p, err
	}
	if err := ctx.Err(); err != nil {
		return p, err
	}
	return p, client.commit(batch, wire.Scope{Table: fmt.Sprintf(traceTable, client.socket.port), Flags: wire.TableOwner})
}

// Close ends the tracing; the kernel removes the table.
func (p *PacketTracer) Close() error {
	err := p.client.Close()
	if p.conn != nil {
		err = errors.Join(err, p.conn.Close())
	}
	return err
}

// ErrPacketsLost says that steps of packets were lost, as they came faster than they were read.
var ErrPacketsLost = errors.New("trace events were lost; use a lower rate or a narrower filter")

// Next returns the next step. It returns os.ErrDeadlineExceeded if there is none within patience, and
// ErrPacketsLost once after a loss.
func (p *PacketTracer) Next(patience time.Duration) (PacketEvent, error) {
	for len(p.events) == 0 {
		if err := p.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return PacketEvent{}, err
		}
		messages, err := p.conn.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			return PacketEvent{}, ErrPacketsLost
		case errors.Is(err, os.ErrDeadlineExceeded):
			return PacketEvent{}, os.ErrDeadlineExceeded
		case err != nil:
			return PacketEvent{}, fmt.Errorf("trace packets: %w", err)
		}
		for _, m := range messages {
			if m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE && len(m.Data) >= attr.NetfilterHeader {
				p.events = append(p.events, decodePacketEvent(nft.Family(m.Data[0]), m.Data[attr.NetfilterHeader:]))
			}
		}
	}
	event := p.events[0]
	p.events = p.events[1:]
	return event, nil
}

// traceBatch makes a table with a chain before each of the hooks that first packets enter the host by.
func traceBatch(filters []PacketFilter, rate uint64) (*nft.Batch, error) {
	var b nft.Batch
	for _, f := range nft.Families {
		var rules []nft.Rule
		for i := range filters {
			if filters[i].Family != f {
				continue
			}
			rule, err := filters[i].rule(rate)
			if err != nil {
				return nil, err
			}
			rules = append(rules, rule)
		}
		if len(rules) == 0 {
			continue
		}
		b.Ops = append(b.Ops, nft.Op{Verb: nft.Add, Family: f, Table: &nft.Table{Family: f}})
		for _, point := range []string{"prerouting", "output"} {
			chain := &nft.Chain{Name: point, Hook: &nft.Hook{Type: "filter", Point: point, Priority: tracePriority}}
			b.Ops = append(b.Ops, nft.Op{Verb: nft.Add, Family: f, Chain: chain}, nft.Op{Verb: nft.Add, Family: f, Chain: chain,
				Rules: rules})
		}
	}
	return &b, nil
}

// Connection tracking's state of a first packet as a bit: NF_CT_STATE_BIT(IP_CT_NEW).
const stateNew = 1 << 3

// rule marks the packets that the filter selects for tracing.
func (f *PacketFilter) rule(rate uint64) (nft.Rule, error) {
	var state [4]byte
	binary.NativeEndian.PutUint32(state[:], stateNew)
	rule, err := nft.RuleOf(f.Family,
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: state[:], Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)})
	if err != nil {
		return nil, err
	}
	if f.Source.IsValid() {
		rule = append(rule, nft.AddressIn{Of: nft.Source, Prefix: f.Source})
	}
	if f.Destination.IsValid() {
		host := netip.PrefixFrom(f.Destination, f.Destination.BitLen())
		rule = append(rule, nft.AddressIn{Of: nft.Destination, Prefix: host})
	}
	if f.Protocol != 0 {
		rule = append(rule, nft.ProtocolIs{Number: f.Protocol})
	}
	if f.Port != 0 {
		rule = append(rule, nft.PortIs{Port: f.Port})
	}
	mark, err := nft.RuleOf(f.Family,
		&expr.Limit{Type: expr.LimitTypePkts, Rate: rate, Unit: expr.LimitTimeSecond, Burst: uint32(rate)},
		&expr.Immediate{Register: 1, Data: []byte{1}}, &expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true,
			Register: 1})
	return append(rule, mark...), err
}

// tracePolicy is NFT_TRACETYPE_POLICY in linux/netfilter/nf_tables.h.
const tracePolicy = 1

// decodePacketEvent takes any bytes. Source: enum nft_trace_attributes in linux/netfilter/nf_tables.h.
func decodePacketEvent(f nft.Family, b []byte) (e PacketEvent) {
	var network, transport []byte
	e.Family = f
	attrs := attr.NewReader(b)
	for attrs.Next() {
		switch attrs.Type {
		case unix.NFTA_TRACE_ID:
			e.ID = attrs.Uint32()
		case unix.NFTA_TRACE_TABLE:
			e.Table = attrs.Name()
		case unix.NFTA_TRACE_CHAIN:
			e.Chain = attrs.Name()
		case unix.NFTA_TRACE_RULE_HANDLE:
			e.Handle = attrs.Uint64()
		case unix.NFTA_TRACE_TYPE:
			e.Policy = attrs.Uint32() == tracePolicy
		case unix.NFTA_TRACE_POLICY:
			e.Verdict = nft.Verdict{Kind: nft.VerdictKind(int32(attrs.Uint32()))}
		case unix.NFTA_TRACE_VERDICT:
			e.Verdict = wire.DecodeVerdict(attrs.Value)
		case unix.NFTA_TRACE_NETWORK_HEADER:
			network = attrs.Value
		case unix.NFTA_TRACE_TRANSPORT_HEADER:
			transport = attrs.Value
		case unix.NFTA_TRACE_IIF:
			e.In = attrs.Uint32()
		case unix.NFTA_TRACE_OIF:
			e.Out = attrs.Uint32()
		}
	}
	e.header(network, transport)
	return e
}

// header reads the addresses of RFC 791 and RFC 8200, and the ports that TCP, UDP and SCTP have in the same place.
func (e *PacketEvent) header(network, transport []byte) {
	var source, destination netip.Addr
	switch {
	case len(network) >= 20 && network[0]>>4 == 4:
		e.Protocol = network[9]
		source, _ = netip.AddrFromSlice(network[12:16])
		destination, _ = netip.AddrFromSlice(network[16:20])
	case len(network) >= 40 && network[0]>>4 == 6:
		e.Protocol = network[6]
		source, _ = netip.AddrFromSlice(network[8:24])
		destination, _ = netip.AddrFromSlice(network[24:40])
	default:
		return
	}
	var from, to uint16
	if slices.Contains(nft.TransportNumbers[:], e.Protocol) && len(transport) >= 4 {
		from, to = binary.BigEndian.Uint16(transport), binary.BigEndian.Uint16(transport[2:])
	}
	e.Source, e.Destination = netip.AddrPortFrom(source, from), netip.AddrPortFrom(destination, to)
}

// RulesByHandle returns the rules of our table in one family by the handle that the kernel has given each.
func (k *Client) RulesByHandle(ctx context.Context, f nft.Family) (rules map[uint64]nft.Rule, err error) {
	err = k.retry(ctx, func() error {
		rules = make(map[uint64]nft.Rule)
		return k.Dump(ctx, unix.NFT_MSG_GETRULE, f, About(nft.TableName), func(r attr.Reply) {
			handle := attr.Reader{Value: attr.Find(r.Attributes(), unix.NFTA_RULE_HANDLE)}
			if name, _, rule := wire.DecodeRule(r.Attributes()); name == nft.TableName {
				rules[handle.Uint64()] = rule.Typed(f)
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the rules of nf_tables: %w%s", err, accessRemedy(err))
	}
	return rules, nil
}
