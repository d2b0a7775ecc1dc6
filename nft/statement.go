package nft

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A Part is one expression that selects a value of the packet or makes one up. Lookups
// take a list of parts, one for each field of the set's key.
type Part struct {
	kind partKind
	// number is the modulus of RandomIndex and HashedIndex, the value of Constant, and how many bits of a masked
	// source count; 0 for all of them.
	number uint32
	// inserted is the number in place of bits 64 to 95 of an IPv6 source; 0 for none. See Numbered.
	inserted uint32
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
	partConstant
	partSourcePort
	partHashed
	partHashedPorts
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
	sourcePort          = Part{kind: partSourcePort}          // th sport; in a HashedIndex alone
)

// RandomIndex is a number below n, each equally likely: numgen random mod n.
func RandomIndex(n uint32) Part { return Part{kind: partRandom, number: n} }

// Constant is the number n, at least 1. nft takes no literal in a key that is looked up; a
// random number below 1 with an offset says the same: numgen random mod 1 offset n. In a
// concatenation it comes first: with an IPv6 address first, nft 1.0.6 aborts on an update.
func Constant(n uint32) Part { return Part{kind: partConstant, number: n} }

// Constant returns the number of a constant.
func (p Part) Constant() (n uint32, ok bool) { return p.number, p.kind == partConstant }

// SourcePrefix is the first bits of the source address, the others zero; bits is less than the
// length of an address.
func SourcePrefix(bits int) Part { return Part{kind: partSource, number: uint32(bits)} }

// mask is the mask of a SourcePrefix in a table of family f.
func (p Part) mask(f Family) []byte {
	return prefixMask(int(p.number), AddrLen(f))
}

func (p Part) text(f Family) string {
	if p.inserted != 0 { // nft prints the bits that are set as kept
		whole := p
		whole.inserted = 0
		bits := insertedBits(p.inserted)
		kept := insertedMask()
		copy(kept[8:12], bits[8:12])
		return whole.text(f) + " & " + bytesText(kept) + " | " + bytesText(bits)
	}
	switch p.kind {
	case partSource:
		if p.number != 0 {
			return f.NFT() + " saddr & " + bytesText(p.mask(f))
		}
		return f.NFT() + " saddr"
	case partConstant:
		return "numgen random mod 1 offset " + strconv.FormatUint(uint64(p.number), 10)
	case partDestination:
		return f.NFT() + " daddr"
	case partProtocol:
		return "meta l4proto"
	case partPort:
		return "th dport"
	case partSourcePort:
		return "th sport"
	case partHashed, partHashedPorts:
		return p.hashText(f)
	case partRandom:
		return "numgen random mod " + strconv.FormatUint(uint64(p.number), 10)
	case partOriginalSource:
		return "ct original " + f.NFT() + " saddr"
	case partOriginalDestination:
		return "ct original " + f.NFT() + " daddr"
	default:
		return "ct original proto-dst"
	}
}

// load is the expression that puts the part's value into a register; a HashedIndex takes several, see
// loadHash.
func (p Part) load(f Family, register uint32) expr.Any {
	switch p.kind {
	case partSource:
		return loadAddr(sourceOffset(f), AddrLen(f), register)
	case partDestination:
		return loadAddr(destinationOffset(f), AddrLen(f), register)
	case partProtocol:
		return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}
	case partPort:
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	case partSourcePort:
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2}
	case partRandom:
		return &expr.Numgen{Register: register, Modulus: p.number, Type: unix.NFT_NG_RANDOM}
	case partConstant:
		return &expr.Numgen{Register: register, Modulus: 1, Offset: p.number, Type: unix.NFT_NG_RANDOM}
	case partOriginalSource:
		return loadOriginal(f, expr.CtKeySRCIP, expr.CtKeySRCIP6, register)
	case partOriginalDestination:
		return loadOriginal(f, expr.CtKeyDSTIP, expr.CtKeyDSTIP6, register)
	default:
		return &expr.Ct{Key: expr.CtKeyPROTODST, Register: register}
	}
}

// words is the number of 32-bit registers that the part's value takes.
func (p Part) words(f Family) int {
	switch p.kind {
	case partSource, partDestination, partOriginalSource, partOriginalDestination:
		return AddrLen(f) / 4
	}
	return 1
}

// sourceOffset and destinationOffset are where the addresses stand in the network header.
func sourceOffset(f Family) uint32 {
	if f == IP6 {
		return 8
	}
	return 12
}

func destinationOffset(f Family) uint32 { return sourceOffset(f) + uint32(AddrLen(f)) }

// loadAddr loads the first n bytes of the address at an offset of the network header.
func loadAddr(offset uint32, n int, register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(n)}
}

// loadOriginal loads an address of a connection as its first packet had it.
func loadOriginal(f Family, key4, key6 expr.CtKey, register uint32) expr.Any {
	key := key4
	if f == IP6 {
		key = key6
	}
	return &expr.Ct{Key: key, Register: register} // direction 0 is IP_CT_DIR_ORIGINAL
}

// parsePart reads what load wrote; ok is false if x loads nothing that a Part stands for.
func parsePart(f Family, x expr.Any) (p Part, ok bool) {
	switch x := x.(type) {
	case *expr.Payload:
		switch {
		case x.Base == expr.PayloadBaseTransportHeader && x.Offset == 0:
			return sourcePort, true
		case x.Base == expr.PayloadBaseTransportHeader:
			return Port, true
		case x.Offset == sourceOffset(f):
			return Source, true
		}
		return Destination, true
	case *expr.Meta:
		return Protocol, x.Key == expr.MetaKeyL4PROTO
	case *expr.Numgen:
		if x.Offset != 0 {
			return Constant(x.Offset), x.Modulus == 1
		}
		return RandomIndex(x.Modulus), true
	case *expr.Ct:
		switch x.Key {
		case expr.CtKeySRCIP, expr.CtKeySRCIP6:
			return OriginalSource, true
		case expr.CtKeyDSTIP, expr.CtKeyDSTIP6:
			return OriginalDestination, true
		}
		return OriginalPort, x.Key == expr.CtKeyPROTODST
	}
	return p, false
}

// load puts the values of parts into consecutive registers, beginning with the first.
func load(f Family, parts ...Part) []expr.Any { return loadAt(f, 0, parts...) }

// loadAt is load for registers that begin some words after the first.
func loadAt(f Family, word int, parts ...Part) []expr.Any {
	x, all := make([]expr.Any, 0, 2*len(parts)+2), 0 // with room for masks, and for what is done with the values
	for _, p := range parts {
		all += p.words(f)
	}
	for _, p := range parts {
		to := register(word)
		if p.hashed() {
			x = append(x, p.loadHash(f, word, all)...)
			word++
			continue
		}
		x = append(x, p.load(f, to))
		if p.inserted != 0 {
			x = append(x, bitwise(to, insertedMask(), insertedBits(p.inserted)))
		}
		if p.kind == partSource && p.number != 0 {
			mask := p.mask(f)
			x = append(x, bitwise(to, mask, make([]byte, len(mask))))
		}
		word += p.words(f)
	}
	return x
}

// parseKey reads the parts that a list of expressions begins with.
func parseKey(f Family, x []expr.Any) (key []Part, n int) {
	for n < len(x) {
		if hash := at[*expr.Hash](x, n); hash != nil {
			hashed, ok := hashOf(key, hash)
			if !ok {
				return nil, 0
			}
			key = hashed
			n++
			continue
		}
		part, ok := parsePart(f, x[n])
		if !ok {
			break
		}
		n++
		mask := at[*expr.Bitwise](x, n)
		switch {
		case mask == nil:
		case len(mask.Xor) == 16 && bytes.Equal(mask.Mask, insertedMask()) && (part == Source || part == OriginalSource):
			part.inserted = binary.BigEndian.Uint32(mask.Xor[8:])
			n++
		case part == Source:
			part = SourcePrefix(onesIn(mask.Mask))
			n++
		}
		key = append(key, part)
	}
	return key, n
}

// at is expression i of a list; nil if there is none or if it is of another type.
func at[T any](x []expr.Any, i int) (found T) {
	if i < len(x) {
		found, _ = x[i].(T)
	}
	return found
}

// register is the number under which the kernel lists the 32-bit register that stands word
// places after the first: every fourth one is also a 128-bit register, and goes by that
// number. Source: enum nft_registers in linux/netfilter/nf_tables.h.
func register(word int) uint32 {
	if word%4 == 0 {
		return uint32(unix.NFT_REG_1 + word/4)
	}
	return uint32(unix.NFT_REG32_00 + word)
}

// bytesText is an address given by its bytes.
func bytesText(b []byte) string {
	addr, _ := netip.AddrFromSlice(b)
	return addrText(addr)
}

// keyText joins parts as nft prints a concatenation.
func keyText(f Family, key []Part) string { return protocolKeyText(f, key, 0) }

// protocolKeyText is keyText with the ports of a protocol; 0 stands for any.
func protocolKeyText(f Family, key []Part, protocol uint8) string {
	parts := make([]string, len(key))
	for i, p := range key {
		parts[i] = portText(p, protocol, f)
	}
	return strings.Join(parts, " . ")
}

// notText is what stands before the right-hand side of a match that is negated.
func notText(not bool) string {
	if not {
		return "!= "
	}
	return ""
}

// ProtocolText prints a protocol as nft does, for those that Services can have; nft reads
// the number of any other, though it may list it by name.
func ProtocolText(number uint8) string {
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

// AddrPortText is an address with its port; without a port, where there is none.
func AddrPortText(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// A numbered source is a client's address together with a number, by which Service ports share one
// map of clients. In an IPv4 table the two are fields of a concatenation. In an IPv6 table the
// number takes the place of bits 64 to 95 of the address: nft before 1.0.8 lets the data of an
// update overwrite a key of more than 16 bytes. Two clients of one /64 whose addresses end with the
// same 32 bits are one client there.

// Numbered is the key of a numbered source, Source or OriginalSource, in a table of family f. The
// number n is at least 1.
func Numbered(f Family, n uint32, source Part) []Part {
	if f == IP6 {
		source.inserted = n
		return []Part{source}
	}
	return []Part{Constant(n), source}
}

// NumberedFields are the fields of such a key.
func NumberedFields(f Family) []Field {
	if f == IP6 {
		return []Field{FieldAddr}
	}
	return []Field{FieldIndex, FieldAddr}
}

// NumberIn is the number of a key that Numbered made; 0 if it has none.
func NumberIn(key []Part) uint32 {
	if len(key) == 0 {
		return 0
	}
	if key[0].kind == partConstant {
		return key[0].number
	}
	return key[0].inserted
}

// insertedMask keeps the bits of an IPv6 address that a number leaves; insertedBits is the number in
// its place.
func insertedMask() []byte {
	mask := make([]byte, 16)
	for i := range mask {
		if i < 8 || i >= 12 {
			mask[i] = 0xff
		}
	}
	return mask
}

func insertedBits(n uint32) []byte {
	b := make([]byte, 16)
	binary.BigEndian.PutUint32(b[8:], n)
	return b
}

// addrText prints an address as nft does, which uses the C library's inet_ntop. That differs from
// netip for IPv6 addresses with 96 leading zero bits, which end in IPv4 notation.
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
