// Package packets sends real packets through kube-nft, in network namespaces, and compares what becomes of them with
// what a case expects. To add a case, write a file below testdata/cases; casefile_test.go says what it may contain.
//
// The fixtures:
//   - A bench is a node and its pods: namespaces, devices, and listeners that say who they are.
//   - A sentinel is a Service beside the case. When its latest endpoint answers, the proxy has programmed everything
//     that came before it, so no test has to sleep.
//   - The oracle is the code that sends a case's packets and judges the answers. Its own tests run it against
//     oracleRules, an nft ruleset that is right, and against others that are wrong.
package packets

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Lengths, in bytes, of the headers that the crafted packets have; none carries options.
const (
	ipv4HeaderLen = 20
	ipv6HeaderLen = 40
	tcpHeaderLen  = 20
	udpHeaderLen  = 8
	sctpHeaderLen = 12
	sctpInitLen   = 20
)

// Bits of the flags byte of a TCP header.
const (
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpACK = 0x10
)

// SCTP chunk types (RFC 9260, section 3.2).
const (
	sctpInit    = 1
	sctpInitAck = 2
	sctpAbort   = 6
)

// firstSequence is the sequence number of crafted SYNs.
const firstSequence = 0x10000000

// castagnoli is the polynomial of SCTP's checksum (RFC 9260, appendix A).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A tuple names one direction of a connection, as a packet's headers do.
type tuple struct {
	proto    uint8 // IANA protocol number
	src, dst netip.AddrPort
}

// reverse returns the tuple of the packets that travel the other way.
func (t tuple) reverse() tuple { return tuple{proto: t.proto, src: t.dst, dst: t.src} }

// String returns the tuple as "tcp 10.0.0.1:1000 -> 10.0.0.2:80".
func (t tuple) String() string {
	return fmt.Sprintf("%s %s -> %s", protocolName(t.proto), t.src, t.dst)
}

// protocols are the transport protocols by the names that the cases use.
var protocols = map[string]uint8{
	"tcp":  unix.IPPROTO_TCP,
	"udp":  unix.IPPROTO_UDP,
	"sctp": unix.IPPROTO_SCTP,
}

// protocolName returns a protocol's name, or its number if it has none here.
func protocolName(proto uint8) string {
	for name, number := range protocols {
		if number == proto {
			return name
		}
	}
	return fmt.Sprint(proto)
}

// opening returns the first packet of a connection: a TCP SYN, a datagram or an SCTP INIT.
func opening(t tuple) []byte {
	switch t.proto {
	case unix.IPPROTO_TCP:
		return ipPacket(t, tcpSegment(t, firstSequence, 0, tcpSYN))
	case unix.IPPROTO_SCTP:
		return ipPacket(t, sctpOpening(t))
	default:
		return ipPacket(t, udpDatagram(t, []byte("opening")))
	}
}

// acceptance returns the SYN-ACK with which the server at t.src answers the SYN of t.dst
// that had the given sequence number.
func acceptance(t tuple, sequence uint32) []byte {
	return ipPacket(t, tcpSegment(t, firstSequence, sequence+1, tcpSYN|tcpACK))
}

// echoRequest returns an ICMP or ICMPv6 echo request with the given sequence number.
func echoRequest(src, dst netip.Addr, sequence uint16) []byte {
	t := tuple{proto: icmpProtocol(src), src: netip.AddrPortFrom(src, 0), dst: netip.AddrPortFrom(dst, 0)}
	return ipPacket(t, echoMessage(src, dst, sequence))
}

// icmpProtocol returns the number of the ICMP that belongs to an address's family.
func icmpProtocol(addr netip.Addr) uint8 {
	if addr.Is4() {
		return unix.IPPROTO_ICMP
	}
	return unix.IPPROTO_ICMPV6
}

// echoMessage returns an echo request without the IP header. Only ICMPv6 covers the
// addresses with its checksum (RFC 4443, section 2.3).
func echoMessage(src, dst netip.Addr, sequence uint16) []byte {
	b := make([]byte, 8)
	b[0] = icmpEchoRequest
	covered := uint32(0)
	if src.Is6() {
		b[0] = icmp6EchoRequest
		covered = pseudoHeaderSum(src, dst, unix.IPPROTO_ICMPV6, len(b))
	}
	binary.BigEndian.PutUint16(b[6:], sequence)
	binary.BigEndian.PutUint16(b[2:], internetChecksum(covered, b))
	return b
}

// tcpSegment returns a TCP header with its checksum and no payload.
func tcpSegment(t tuple, sequence, acknowledged uint32, flags byte) []byte {
	b := make([]byte, tcpHeaderLen)
	putPorts(b, t)
	binary.BigEndian.PutUint32(b[4:], sequence)
	binary.BigEndian.PutUint32(b[8:], acknowledged)
	b[12] = tcpHeaderLen / 4 << 4
	b[13] = flags
	binary.BigEndian.PutUint16(b[14:], 65535)
	binary.BigEndian.PutUint16(b[16:], transportChecksum(t, b))
	return b
}

// udpDatagram returns a UDP header with its checksum, and the payload. The sum 0 is sent
// as 65535, because 0 means no checksum (RFC 768).
func udpDatagram(t tuple, payload []byte) []byte {
	b := append(make([]byte, udpHeaderLen), payload...)
	putPorts(b, t)
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	sum := transportChecksum(t, b)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[6:], sum)
	return b
}

// sctpOpening returns an SCTP packet with one INIT chunk (RFC 9260, section 3.3.2). Its
// verification tag is 0, its initiate tag must not be.
func sctpOpening(t tuple) []byte {
	b := make([]byte, sctpHeaderLen+sctpInitLen)
	putPorts(b, t)
	chunk := b[sctpHeaderLen:]
	chunk[0] = sctpInit
	binary.BigEndian.PutUint16(chunk[2:], sctpInitLen)
	binary.BigEndian.PutUint32(chunk[4:], 1)
	binary.BigEndian.PutUint32(chunk[8:], 65536)
	binary.BigEndian.PutUint16(chunk[12:], 1)
	binary.BigEndian.PutUint16(chunk[14:], 1)
	binary.BigEndian.PutUint32(chunk[16:], firstSequence)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// putPorts writes the ports, which TCP, UDP and SCTP all have in their first four bytes.
func putPorts(b []byte, t tuple) {
	binary.BigEndian.PutUint16(b, t.src.Port())
	binary.BigEndian.PutUint16(b[2:], t.dst.Port())
}

// ipPacket puts the IP header of t's family before a payload.
func ipPacket(t tuple, payload []byte) []byte {
	if t.src.Addr().Is4() {
		return append(ipv4Header(t, len(payload)), payload...)
	}
	return append(ipv6Header(t, len(payload)), payload...)
}

// ipv4Header returns an IPv4 header for a payload of the given length.
func ipv4Header(t tuple, length int) []byte {
	b := make([]byte, ipv4HeaderLen)
	b[0] = 4<<4 | ipv4HeaderLen/4
	binary.BigEndian.PutUint16(b[2:], uint16(ipv4HeaderLen+length))
	b[8] = 64
	b[9] = t.proto
	copy(b[12:], t.src.Addr().AsSlice())
	copy(b[16:], t.dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[10:], internetChecksum(0, b))
	return b
}

// ipv6Header returns an IPv6 header for a payload of the given length.
func ipv6Header(t tuple, length int) []byte {
	b := make([]byte, ipv6HeaderLen)
	b[0] = 6 << 4
	binary.BigEndian.PutUint16(b[4:], uint16(length))
	b[6] = t.proto
	b[7] = 64
	copy(b[8:], t.src.Addr().AsSlice())
	copy(b[24:], t.dst.Addr().AsSlice())
	return b
}

// transportChecksum returns the checksum of a TCP segment or a UDP datagram, or 0 if the
// segment holds its right checksum already.
func transportChecksum(t tuple, segment []byte) uint16 {
	return internetChecksum(pseudoHeaderSum(t.src.Addr(), t.dst.Addr(), t.proto, len(segment)), segment)
}

// pseudoHeaderSum returns the sum over what a transport checksum covers besides the segment.
func pseudoHeaderSum(src, dst netip.Addr, proto uint8, length int) uint32 {
	return wordSum(src.AsSlice()) + wordSum(dst.AsSlice()) + uint32(proto) + uint32(length)
}

// internetChecksum returns the checksum of RFC 1071 over b, on top of an earlier sum.
func internetChecksum(sum uint32, b []byte) uint16 {
	sum += wordSum(b)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// wordSum adds up the 16-bit words of b; an odd last byte counts as the high one.
func wordSum(b []byte) uint32 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}
