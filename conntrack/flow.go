package conntrack

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/kube-nft/kube-nft/tracker"
)

// A Tuple identifies one direction of a flow. Protocols without ports have port 0.
type Tuple struct {
	Source, Destination netip.AddrPort
	Protocol            tracker.Protocol
}

// String returns "udp 192.0.2.1:4000 -> 10.96.0.10:53".
func (t Tuple) String() string {
	return fmt.Sprintf("%s %s -> %s", t.Protocol, t.Source, t.Destination)
}

// Status holds the kernel's IPS_ bits of a flow; see linux/netfilter/nf_conntrack_common.h.
type Status uint32

// The bits that decide here.
const (
	SeenReply      Status = 1 << 1 // IPS_SEEN_REPLY: a packet of the reply direction was seen
	Assured        Status = 1 << 2 // IPS_ASSURED: never dropped early
	DestinationNAT Status = 1 << 5 // IPS_DST_NAT: the destination was translated
	Dying          Status = 1 << 9 // IPS_DYING: the kernel removes it
)

// TCPState is a state of the kernel's TCP tracker (enum tcp_conntrack).
type TCPState uint8

// SYNSent is the state after a SYN without an answer (TCP_CONNTRACK_SYN_SENT), finWait the first one of a connection
// that ends (TCP_CONNTRACK_FIN_WAIT). Nothing more comes from TCP_CONNTRACK_LAST_ACK to TCP_CONNTRACK_CLOSE.
const (
	SYNSent TCPState = 1
	finWait TCPState = 4
	lastACK TCPState = 6
	closed  TCPState = 8
)

// A Flow is one entry of the connection tracking table.
type Flow struct {
	Family          tracker.Family
	Original, Reply Tuple
	Zone            uint16 // connection tracking zone of the original direction; 0 is the default
	Status          Status
	TCPState        TCPState // 0 for every other protocol
	ID              uint32   // the kernel's name for this very entry, in network byte order as sent

	// Sent counts the original direction, Returned the reply direction. Both are 0 for flows that were made while
	// net.netfilter.nf_conntrack_acct was 0.
	Sent, Returned Counter

	// When the flow was made and removed, in nanoseconds since 1970 by the node's clock. Both are 0 for flows that were
	// made while net.netfilter.nf_conntrack_timestamp was 0; Stopped is 0 as long as the flow exists.
	Started, Stopped uint64

	// Idle is for how long no packet had come when the flow was removed, as far as an Endings knows.
	Idle time.Duration
}

// A Counter is what the kernel counted in one direction of a flow. Bytes are those of whole IP packets, with the
// headers of IP and of the transport, without those of the link.
type Counter struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Duration returns how long the flow lasted, until its last packet; 0 if the kernel did not note both ends. A clock
// that was set back meanwhile makes 0, too.
func (f *Flow) Duration() time.Duration { return f.existed() - f.Idle }

// existed returns how long there was an entry.
func (f *Flow) existed() time.Duration {
	if f.Started == 0 || f.Stopped <= f.Started {
		return 0
	}
	return time.Duration(f.Stopped - f.Started)
}

// Endpoint is where the flow's packets end up: the reply's source, which is the original
// destination unless it was translated.
func (f *Flow) Endpoint() netip.AddrPort { return f.Reply.Source }

// Translated reports whether the flow's destination was changed. ip_vs changes it without the kernel's bit for that.
func (f *Flow) Translated() bool {
	return f.Status&DestinationNAT != 0 || f.Reply.Source != f.Original.Destination
}

// Bypasses reports whether the flow's first packet was neither translated nor answered. Repetitions
// of that packet match the entry, so nat chains do not see them. They bypass translation until the
// entry is deleted.
func (f *Flow) Bypasses() bool {
	if f.Status&SeenReply != 0 || f.Translated() {
		return false
	}
	switch f.Original.Protocol {
	case tracker.UDP, tracker.SCTP:
		return true
	case tracker.TCP:
		// A connection picked up in its middle is unanswered too, but established.
		return f.TCPState == SYNSent
	}
	return false
}

// Ended reports whether nothing more is to come of a connection: TCP has said goodbye in both directions, or was reset.
func (f *Flow) Ended() bool {
	return lastACK <= f.TCPState && f.TCPState <= closed
}
