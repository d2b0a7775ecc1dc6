package packets

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// tupleOf makes a tuple from text.
func tupleOf(proto uint8, src, dst string) tuple {
	return tuple{proto: proto, src: netip.MustParseAddrPort(src), dst: netip.MustParseAddrPort(dst)}
}

// unhex decodes hexadecimal digits.
func unhex(t testing.TB, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestInternetChecksum(t *testing.T) {
	for _, tt := range []struct {
		name, digits string
		want         uint16
	}{
		{"example of RFC 1071", "0001f203f4f5f6f7", ^uint16(0xddf2)},
		{"IPv4 header", "4500003044224000800600008c7c19acae241e2b", 0x442e},
		{"odd length", "0102f0", ^uint16(0xf102)},
		{"nothing", "", 0xffff},
	} {
		if got := internetChecksum(0, unhex(t, tt.digits)); got != tt.want {
			t.Errorf("%s: %#04x, want %#04x", tt.name, got, tt.want)
		}
	}
}

// TestSCTPChecksum uses the test vectors of RFC 3720, appendix B.4, whose CRC is the one
// of SCTP. Bytes 8 to 11 are 0 in the first.
func TestSCTPChecksum(t *testing.T) {
	if got := sctpChecksum(make([]byte, 32)); got != 0x8a9136aa {
		t.Errorf("32 zeros: %#08x, want 0x8a9136aa", got)
	}
	zeros := make([]byte, 32)
	copy(zeros[8:], "sum.")
	if got := sctpChecksum(zeros); got != 0x8a9136aa {
		t.Errorf("the checksum depends on the checksum field: %#08x", got)
	}
}

// TestCraftedPackets checks every packet that the bench sends: it must be read as what it
// is, with right checksums, and not be taken for intact once any byte has changed.
func TestCraftedPackets(t *testing.T) {
	for _, ends := range [][2]string{
		{"10.244.0.7:2000", "10.96.0.1:80"},
		{"[fd00:10:244::7]:2000", "[fd00:10:96::1]:80"},
	} {
		for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
			want := tupleOf(proto, ends[0], ends[1])
			checkCrafted(t, opening(want), packet{tuple: want, kind: opens, intact: true})
		}
		answer := tupleOf(unix.IPPROTO_TCP, ends[1], ends[0])
		checkCrafted(t, acceptance(answer, 7), packet{tuple: answer, kind: accepts, intact: true})
	}
}

// checkCrafted compares what is read from a packet with what it should be. No checksum
// covers the first 8 bytes of an IPv6 header.
func checkCrafted(t *testing.T, crafted []byte, want packet) {
	t.Helper()
	got, ok := parsePacket(crafted)
	got.sequence = 0
	if !ok || got != want {
		t.Errorf("%s: read as %+v, %t", want.tuple, got, ok)
	}
	uncovered := 0
	if want.src.Addr().Is6() {
		uncovered = 8
	}
	for i := uncovered; i < len(crafted); i++ {
		spoilt := append([]byte(nil), crafted...)
		spoilt[i] ^= 0x01
		if got, ok := parsePacket(spoilt); ok && got == want {
			t.Errorf("%s: byte %d has changed, but the packet reads the same", want.tuple, i)
		}
	}
}

func TestEchoRequests(t *testing.T) {
	for _, ends := range [][2]string{{"10.244.0.7", "192.0.2.254"}, {"fd00:10:244::7", "2001:db8::1"}} {
		src, dst := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
		b := echoRequest(src, dst, 77)
		p, ok := parsePacket(b)
		if !ok || p.kind != echo || p.sequence != 77 || p.src.Addr() != src || p.dst.Addr() != dst {
			t.Errorf("%s: read as %+v, %t", src, p, ok)
		}
		_, payload, _ := parseIP(b)
		covered := uint32(0)
		if src.Is6() {
			covered = pseudoHeaderSum(src, dst, unix.IPPROTO_ICMPV6, len(payload))
		}
		if sum := internetChecksum(covered, payload); sum != 0 {
			t.Errorf("%s: wrong checksum, off by %#04x", src, sum)
		}
	}
}

func TestUDPChecksumIsNeverZero(t *testing.T) {
	want := tupleOf(unix.IPPROTO_UDP, "10.0.0.1:1", "10.0.0.2:2")
	var payload [2]byte
	for i := range 1 << 16 {
		payload[0], payload[1] = byte(i>>8), byte(i)
		if b := udpDatagram(want, payload[:]); b[6] == 0 && b[7] == 0 {
			t.Fatalf("payload %x: checksum 0, which means none", payload)
		}
	}
}

// TestParseICMPError reads errors as the kernel sends them: with a quotation that is cut.
func TestParseICMPError(t *testing.T) {
	for _, tt := range []struct {
		name           string
		client, server string
		proto, kind    byte
		code           byte
		want           kind
	}{
		{"port unreachable", "10.0.0.1:1", "10.0.0.2:2", unix.IPPROTO_ICMP, 3, 3, unreachable},
		{"administratively prohibited", "10.0.0.1:1", "10.0.0.2:2", unix.IPPROTO_ICMP, 3, 13, unreachable},
		{"fragmentation needed", "10.0.0.1:1", "10.0.0.2:2", unix.IPPROTO_ICMP, 3, 4, other},
		{"time exceeded", "10.0.0.1:1", "10.0.0.2:2", unix.IPPROTO_ICMP, 11, 0, other},
		{"IPv6 port unreachable", "[fd00::1]:1", "[fd00::2]:2", unix.IPPROTO_ICMPV6, 1, 4, unreachable},
		{"IPv6 packet too big", "[fd00::1]:1", "[fd00::2]:2", unix.IPPROTO_ICMPV6, 2, 0, other},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sent := tupleOf(unix.IPPROTO_TCP, tt.client, tt.server)
			header := ipv4HeaderLen
			if sent.src.Addr().Is6() {
				header = ipv6HeaderLen
			}
			message := append([]byte{tt.kind, tt.code, 0, 0, 0, 0, 0, 0}, opening(sent)[:header+8]...)
			outer := sent.reverse()
			outer.proto = tt.proto
			p, ok := parsePacket(ipPacket(outer, message))
			if !ok || p.kind != tt.want || tt.want == unreachable && p.quoted != sent {
				t.Errorf("read as kind %d about %s, %t", p.kind, p.quoted, ok)
			}
		})
	}
}

func FuzzParsePacket(f *testing.F) {
	for _, ends := range [][2]string{{"10.0.0.1:1", "10.0.0.2:2"}, {"[fd00::1]:1", "[fd00::2]:2"}} {
		for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_ICMP} {
			f.Add(opening(tupleOf(proto, ends[0], ends[1])))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := parsePacket(b) // must not panic
		if ok && (!p.src.Addr().IsValid() || !p.dst.Addr().IsValid()) {
			t.Errorf("packet without addresses: %+v", p)
		}
	})
}
