package packets

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ICMP types (RFC 792, RFC 4443) and the one ICMP code that is no refusal.
const (
	icmpUnreachable  = 3
	icmpEchoRequest  = 8
	icmp6Unreachable = 1
	icmp6EchoRequest = 128
	icmpFragNeeded   = 4
)

// A kind is what a packet means for the connection that it belongs to.
type kind uint8

// The kinds of packets. The zero kind is a packet that tells nothing.
const (
	other       kind = iota
	opens            // TCP SYN, datagram, SCTP INIT
	accepts          // TCP SYN-ACK, SCTP INIT ACK
	resets           // TCP RST, SCTP ABORT
	unreachable      // ICMP destination unreachable
	echo             // ICMP echo request
)

// A packet is what the bench reads from a packet that it captured.
type packet struct {
	tuple           // ports are 0 in ICMP
	kind     kind   //
	sequence uint32 // of a TCP segment or an echo request
	quoted   tuple  // the packet that an ICMP error is about
	intact   bool   // all checksums are right; an ICMP error's are not looked at
	device   *tun   // where it came out; nil: stayed within the node
}

// parsePacket reads an IP packet. It reports false for one that is cut off, is a later
// fragment, or is of a protocol that the bench does not use.
func parsePacket(b []byte) (packet, bool) {
	p, payload, ok := parseIP(b)
	if !ok || !p.parsePorts(payload) {
		return packet{}, false
	}
	switch p.proto {
	case unix.IPPROTO_TCP:
		return p, p.parseTCP(payload)
	case unix.IPPROTO_UDP:
		return p, p.parseUDP(payload)
	case unix.IPPROTO_SCTP:
		return p, p.parseSCTP(payload)
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return p, p.parseICMP(payload)
	}
	return packet{}, false
}

// parseIP reads an IP header without IPv6 extensions, and returns the payload as far as b
// holds it. The quotation in an ICMP error is shorter than its header says.
func parseIP(b []byte) (packet, []byte, bool) {
	switch {
	case len(b) >= ipv4HeaderLen && b[0]>>4 == 4:
		return parseIPv4(b)
	case len(b) >= ipv6HeaderLen && b[0]>>4 == 6:
		return parseIPv6(b)
	}
	return packet{}, nil, false
}

// parseIPv4 is parseIP for a packet that is long enough for a header without options.
func parseIPv4(b []byte) (packet, []byte, bool) {
	header := int(b[0]&0x0f) * 4
	total := int(binary.BigEndian.Uint16(b[2:]))
	fragment := binary.BigEndian.Uint16(b[6:]) & 0x1fff
	if header < ipv4HeaderLen || header > len(b) || total < header || fragment != 0 {
		return packet{}, nil, false
	}
	p := packet{intact: internetChecksum(0, b[:header]) == 0}
	p.proto = b[9]
	p.src = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[12:16])), 0)
	p.dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:20])), 0)
	return p, b[header:min(total, len(b))], true
}

// parseIPv6 is parseIP for a packet that is long enough for a header.
func parseIPv6(b []byte) (packet, []byte, bool) {
	length := int(binary.BigEndian.Uint16(b[4:]))
	p := packet{intact: true}
	p.proto = b[6]
	p.src = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), 0)
	p.dst = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[24:40])), 0)
	return p, b[ipv6HeaderLen:min(ipv6HeaderLen+length, len(b))], true
}

// parsePorts reads the ports of a protocol that has them. It reports false if they are
// cut off.
func (p *packet) parsePorts(payload []byte) bool {
	switch p.proto {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		if len(payload) < 4 {
			return false
		}
		p.src = netip.AddrPortFrom(p.src.Addr(), binary.BigEndian.Uint16(payload))
		p.dst = netip.AddrPortFrom(p.dst.Addr(), binary.BigEndian.Uint16(payload[2:]))
	}
	return true
}

// parseTCP reads a TCP segment.
func (p *packet) parseTCP(b []byte) bool {
	if len(b) < tcpHeaderLen {
		return false
	}
	p.sequence = binary.BigEndian.Uint32(b[4:])
	p.intact = p.intact && transportChecksum(p.tuple, b) == 0
	switch flags := b[13]; {
	case flags&tcpRST != 0:
		p.kind = resets
	case flags&(tcpSYN|tcpACK) == tcpSYN|tcpACK:
		p.kind = accepts
	case flags&tcpSYN != 0:
		p.kind = opens
	}
	return true
}

// parseUDP reads a UDP datagram.
func (p *packet) parseUDP(b []byte) bool {
	if len(b) < udpHeaderLen {
		return false
	}
	p.kind = opens
	p.intact = p.intact && transportChecksum(p.tuple, b) == 0
	return true
}

// parseSCTP reads an SCTP packet by its first chunk.
func (p *packet) parseSCTP(b []byte) bool {
	if len(b) < sctpHeaderLen+4 {
		return false
	}
	switch b[sctpHeaderLen] {
	case sctpInit:
		p.kind = opens
	case sctpInitAck:
		p.kind = accepts
	case sctpAbort:
		p.kind = resets
	}
	p.intact = p.intact && sctpChecksum(b) == binary.LittleEndian.Uint32(b[8:])
	return true
}

// sctpChecksum returns the checksum of an SCTP packet, whose checksum field counts as 0.
func sctpChecksum(b []byte) uint32 {
	sum := crc32.Update(0, castagnoli, b[:8])
	sum = crc32.Update(sum, castagnoli, make([]byte, 4))
	return crc32.Update(sum, castagnoli, b[12:])
}

// parseICMP reads an echo request or the packet that an error quotes.
func (p *packet) parseICMP(b []byte) bool {
	if len(b) < 8 {
		return false
	}
	switch v4 := p.proto == unix.IPPROTO_ICMP; {
	case v4 && b[0] == icmpEchoRequest, !v4 && b[0] == icmp6EchoRequest:
		p.kind = echo
		p.sequence = uint32(binary.BigEndian.Uint16(b[6:]))
	case v4 && b[0] == icmpUnreachable && b[1] != icmpFragNeeded, !v4 && b[0] == icmp6Unreachable:
		return p.parseQuotation(b[8:])
	}
	return true
}

// parseQuotation reads the beginning of the packet that an ICMP error is about.
func (p *packet) parseQuotation(b []byte) bool {
	quoted, payload, ok := parseIP(b)
	if !ok || !quoted.parsePorts(payload) {
		return false
	}
	p.kind = unreachable
	p.quoted = quoted.tuple
	return true
}
