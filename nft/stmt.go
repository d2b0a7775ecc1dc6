package nft

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Text returns the rule as nft list prints it in a table of family f. nft joins a test for
// one protocol with a port test that follows it ("tcp dport 53"); no rule of ours holds
// both, so that statements render one by one.
func (r Rule) Text(f Family) string {
	parts := make([]string, len(r))
	for i, stmt := range r {
		parts[i] = stmt.text(f)
	}
	return strings.Join(parts, " ")
}

// A Part is one expression that selects a value of the packet or makes one up. Lookups
// take a list of parts, one for each field of the set's key.
type Part struct {
	kind    partKind
	modulus uint32 // of RandomIndex
}

type partKind uint8

const (
	partSource partKind = iota + 1
	partDestination
	partProtocol
	partPort
	partRandom
	partOriginalSource
	partOriginalDestination
	partOriginalPort
)

// The parts that our rules use.
var (
	Source              = Part{kind: partSource}              // ip saddr
	Destination         = Part{kind: partDestination}         // ip daddr
	Protocol            = Part{kind: partProtocol}            // meta l4proto
	Port                = Part{kind: partPort}                // th dport
	OriginalSource      = Part{kind: partOriginalSource}      // ct original ip saddr
	OriginalDestination = Part{kind: partOriginalDestination} // ct original ip daddr
	OriginalPort        = Part{kind: partOriginalPort}        // ct original proto-dst
)

// RandomIndex is a number below n, each equally likely: numgen random mod n.
func RandomIndex(n uint32) Part { return Part{kind: partRandom, modulus: n} }

func (p Part) text(f Family) string {
	switch p.kind {
	case partSource:
		return f.String() + " saddr"
	case partDestination:
		return f.String() + " daddr"
	case partProtocol:
		return "meta l4proto"
	case partPort:
		return "th dport"
	case partRandom:
		return "numgen random mod " + strconv.FormatUint(uint64(p.modulus), 10)
	case partOriginalSource:
		return "ct original " + f.String() + " saddr"
	case partOriginalDestination:
		return "ct original " + f.String() + " daddr"
	default:
		return "ct original proto-dst"
	}
}

// load is the expression that puts the part's value into a register.
func (p Part) load(f Family, register uint32) expr.Any {
	switch p.kind {
	case partSource:
		return f.loadAddr(f.sourceOffset(), f.addrLen(), register)
	case partDestination:
		return f.loadAddr(f.destinationOffset(), f.addrLen(), register)
	case partProtocol:
		return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}
	case partPort:
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	case partRandom:
		return &expr.Numgen{Register: register, Modulus: p.modulus, Type: unix.NFT_NG_RANDOM}
	case partOriginalSource:
		return f.loadOriginal(expr.CtKeySRCIP, expr.CtKeySRCIP6, register)
	case partOriginalDestination:
		return f.loadOriginal(expr.CtKeyDSTIP, expr.CtKeyDSTIP6, register)
	default:
		return &expr.Ct{Key: expr.CtKeyPROTODST, Register: register}
	}
}

// words is the number of 32-bit registers that the part's value takes.
func (p Part) words(f Family) int {
	switch p.kind {
	case partSource, partDestination, partOriginalSource, partOriginalDestination:
		return f.addrLen() / 4
	}
	return 1
}

// sourceOffset and destinationOffset are where the addresses stand in the network header.
func (f Family) sourceOffset() uint32 {
	if f == IP6 {
		return 8
	}
	return 12
}

func (f Family) destinationOffset() uint32 { return f.sourceOffset() + uint32(f.addrLen()) }

// loadAddr loads the first n bytes of the address at an offset of the network header.
func (f Family) loadAddr(offset uint32, n int, register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(n)}
}

// loadOriginal loads an address of a connection as its first packet had it.
func (f Family) loadOriginal(key4, key6 expr.CtKey, register uint32) expr.Any {
	key := key4
	if f == IP6 {
		key = key6
	}
	return &expr.Ct{Key: key, Register: register} // direction 0 is IP_CT_DIR_ORIGINAL
}

// keyText joins parts as nft prints a concatenation.
func keyText(f Family, key []Part) string {
	parts := make([]string, len(key))
	for i, p := range key {
		parts[i] = p.text(f)
	}
	return strings.Join(parts, " . ")
}

// prefixText prints a prefix as nft does: a single address without its length.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return addrText(p.Addr())
	}
	return addrText(p.Masked().Addr()) + "/" + strconv.Itoa(p.Bits())
}

// notText is what stands before the right-hand side of a match that is negated.
func notText(not bool) string {
	if not {
		return "!= "
	}
	return ""
}

// protocolText prints a protocol as nft does, for those that Services can have; nft reads
// the number of any other, though it may list it by name.
func protocolText(number uint8) string {
	switch number {
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_SCTP:
		return "sctp"
	}
	return strconv.Itoa(int(number))
}

// addrText prints an address as nft does, that is as the C library's inet_ntop: like
// netip, but for IPv6 addresses of 96 leading zero bits, which end in IPv4 notation.
func addrText(a netip.Addr) string {
	if !a.Is6() {
		return a.String()
	}
	b := a.As16()
	if [12]byte(b[:12]) == ([12]byte{}) && (b[12] != 0 || b[13] != 0) {
		return "::" + netip.AddrFrom4([4]byte(b[12:])).String()
	}
	return a.String()
}
