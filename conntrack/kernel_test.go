package conntrack

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"

	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/tracker"
)

func openTable(tb testing.TB) *Table {
	tb.Helper()
	table, err := Open()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = table.Close() })
	return table
}

// create makes entries in the kernel, as if their packets had been seen.
func create(tb testing.TB, table *Table, flows ...Flow) {
	tb.Helper()
	for len(flows) > 0 {
		batch := flows[:min(len(flows), 1000)]
		flows = flows[len(batch):]
		messages := make([]netlink.Message, len(batch))
		for i := range batch {
			messages[i] = creation(&batch[i])
		}
		messages[len(batch)-1].Header.Flags |= netlink.Acknowledge
		conn, err := table.ready()
		if err != nil {
			tb.Fatal(err)
		}
		sent, err := conn.SendMessages(messages)
		if err != nil {
			tb.Fatal(err)
		}
		for {
			sequence, err := answer(conn)
			if err != nil {
				if at := int(sequence - sent[0].Header.Sequence); at < len(batch) {
					err = fmt.Errorf("%s: %w", batch[at].Original, err)
				}
				tb.Fatalf("create: %v; %d entries want a net.netfilter.nf_conntrack_max of the machine that is larger", err,
					len(flows)+len(batch))
			}
			if sequence == sent[len(sent)-1].Header.Sequence {
				break
			}
		}
	}
}

// typeNew is IPCTNL_MSG_CT_NEW.
const typeNew = typeGet - 1

// creation returns the message IPCTNL_MSG_CT_NEW for flow.
func creation(flow *Flow) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: typeNew, Flags: netlink.Request | netlink.Create | netlink.Excl},
		Data:   encodeCreation(flow),
	}
}

// encodeCreation describes flow as the kernel wants it for a new entry: the reply as if
// nothing were translated, and the translation beside it.
func encodeCreation(flow *Flow) []byte {
	const confirmed = 1 << 3 // IPS_CONFIRMED, which every entry in the table has
	var w attr.Writer
	w.Netfilter(flow.Family, 0)
	flow.Original.encode(&w, ctaTupleOrig)
	reverse := Tuple{
		Source:      flow.Original.Destination,
		Destination: flow.Original.Source,
		Protocol:    flow.Original.Protocol,
	}
	reverse.encode(&w, ctaTupleReply)
	const timeout = 7 // CTA_TIMEOUT
	w.Uint32(timeout, 300)
	w.Uint32(ctaStatus, uint32(flow.Status&^DestinationNAT)|confirmed)
	w.Uint16(ctaZone, flow.Zone)
	if flow.TCPState != 0 {
		info := w.Open(ctaProtoInfo)
		tcp := w.Open(ctaProtoInfoTCP)
		w.Uint8(ctaProtoInfoTCPState, uint8(flow.TCPState))
		w.Close(tcp)
		w.Close(info)
	}
	if flow.Translated() {
		encodeTranslation(&w, flow.Endpoint())
	}
	return w.Buf
}

// encodeTranslation describes a translation to one address and port.
func encodeTranslation(w *attr.Writer, endpoint netip.AddrPort) {
	at := w.Open(13)    // CTA_NAT_DST
	lowest := uint16(1) // CTA_NAT_V4_MINIP, before CTA_NAT_V4_MAXIP
	if endpoint.Addr().Is6() {
		lowest = 4 // CTA_NAT_V6_MINIP, before CTA_NAT_V6_MAXIP
	}
	w.Addr(lowest, endpoint.Addr())
	w.Addr(lowest+1, endpoint.Addr())
	proto := w.Open(3)           // CTA_NAT_PROTO
	w.Uint16(1, endpoint.Port()) // CTA_PROTONAT_PORT_MIN
	w.Uint16(2, endpoint.Port()) // CTA_PROTONAT_PORT_MAX
	w.Close(proto)
	w.Close(at)
}

// flow returns a flow from source to destination that ended up at endpoint.
func flow(protocol tracker.Protocol, source, destination, endpoint string, status Status) Flow {
	from, to, at := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination),
		netip.MustParseAddrPort(endpoint)
	if at != to {
		status |= DestinationNAT
	}
	f := Flow{
		Family:   tracker.FamilyOf(from.Addr()),
		Original: Tuple{Source: from, Destination: to, Protocol: protocol},
		Reply:    Tuple{Source: at, Destination: from, Protocol: protocol},
		Status:   status,
	}
	if protocol == tracker.TCP {
		f.TCPState = SYNSent
		if status&SeenReply != 0 {
			f.TCPState = 3 // TCP_CONNTRACK_ESTABLISHED
		}
	}
	return f
}

const established = SeenReply | Assured

// mixed is a table in which each filter has something to select and to leave out.
func mixed() []Flow {
	return []Flow{
		flow(tracker.UDP, "192.0.2.1:1000", "10.96.0.10:53", "10.244.0.5:5353", established),
		flow(tracker.UDP, "192.0.2.1:1001", "10.96.0.10:53", "10.244.1.5:5353", 0),
		flow(tracker.UDP, "192.0.2.1:1002", "10.96.0.10:53", "10.96.0.10:53", 0),
		flow(tracker.UDP, "192.0.2.1:1003", "10.96.0.11:53", "10.244.0.5:5353", established),
		flow(tracker.TCP, "192.0.2.1:1004", "10.96.0.10:53", "10.244.0.5:5353", established),
		flow(tracker.TCP, "192.0.2.1:1005", "10.96.0.10:80", "10.96.0.10:80", 0),
		flow(tracker.SCTP, "192.0.2.1:1006", "10.96.0.10:90", "10.96.0.10:90", 0),
		flow(tracker.SCTP, "192.0.2.1:1007", "10.96.0.10:91", "10.244.0.5:91", established),
		flow(tracker.UDP, "[2001:db8::1]:1000", "[fd00:96::10]:53", "[fd00:244::5]:5353", established),
		flow(tracker.UDP, "[2001:db8::1]:1001", "[fd00:96::11]:53", "[fd00:244::6]:5353", 0),
		flow(tracker.TCP, "[2001:db8::1]:1002", "[fd00:96::10]:80", "[fd00:96::10]:80", 0),
	}
}
