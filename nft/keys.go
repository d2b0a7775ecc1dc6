package nft

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/kube-nft/kube-nft/nft/attr"
)

// Family is the family of a table. Rules are declared once and rendered for either.
type Family = attr.Family

// The families of our tables.
const (
	IP  = attr.IPv4
	IP6 = attr.IPv6
)

// Families lists both families in the order in which the kernel lists their tables.
var Families = attr.Families

// AddrLen is the length of an address of the family in bytes.
func AddrLen(f Family) int {
	if f == IP6 {
		return 16
	}
	return 4
}

// Keys and data have the form in which the kernel holds them: the fields of a concatenation padded
// to four bytes, addresses and ports in network order, indexes in host order.

// AppendAddr appends an address to a key or to data.
func AppendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		x := a.As4()
		return append(b, x[:]...)
	}
	x := a.As16()
	return append(b, x[:]...)
}

// AppendProtocol appends a protocol to a key or to data.
func AppendProtocol(b []byte, p uint8) []byte { return append(b, p, 0, 0, 0) }

// AppendPort appends a port to a key or to data.
func AppendPort(b []byte, port uint16) []byte {
	return append(b, byte(port>>8), byte(port), 0, 0)
}

// AppendNumber appends an index or the number of a list to a key or to data.
func AppendNumber(b []byte, n uint32) []byte { return binary.NativeEndian.AppendUint32(b, n) }

// AddrKey is the key of an address by itself.
func AddrKey(a netip.Addr) string {
	var buf [16]byte
	return string(AppendAddr(buf[:0], a))
}

// IndexedKey is the key of a frontend's endpoint number i.
func IndexedKey(frontend string, i int) string {
	var buf [28]byte
	return string(AppendNumber(append(buf[:0], frontend...), uint32(i)))
}

// AddrPortOf reads an address and port from the data of a map, or an address alone: then the port is 0. ok is false for
// data of another shape.
func AddrPortOf(data string) (ep netip.AddrPort, ok bool) {
	if addr, alone := netip.AddrFromSlice([]byte(data)); alone {
		return netip.AddrPortFrom(addr, 0), true
	}
	n := max(0, len(data)-4)
	addr, ok := netip.AddrFromSlice([]byte(data[:n]))
	if !ok {
		return ep, false
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16([]byte(data[n:]))), true
}

// NumberedPort is the key of a port under a number.
func NumberedPort(number uint32, port uint16) string {
	var buf [8]byte
	return string(AppendPort(AppendNumber(buf[:0], number), port))
}

// PortData is a port as the data of a map.
func PortData(port uint16) string { return string(binary.BigEndian.AppendUint16(nil, port)) }

// PortIn reads back what PortData wrote; 0 if it is something else.
func PortIn(data string) uint16 {
	if len(data) != 2 {
		return 0
	}
	return binary.BigEndian.Uint16([]byte(data))
}

// RangeKey is the key of an interval: before and the prefix's first address, then before and its
// last address.
func RangeKey(before string, p netip.Prefix) string {
	var buf [80]byte
	b := append(buf[:0], before...)
	b = AppendAddr(b, p.Masked().Addr())
	b = append(b, before...)
	return string(AppendAddr(b, lastAddr(p)))
}

// lastAddr is the highest address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i, m := range prefixMask(p.Bits(), len(b)) {
		b[i] |= ^m
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// prefixMask is a mask of size bytes whose first bits are set, all of them if they are fewer.
func prefixMask(bits, size int) []byte {
	mask := make([]byte, size)
	for i := range min(bits, 8*size) {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// onesIn is how many bits of a mask are set.
func onesIn(mask []byte) (n int) {
	for _, b := range mask {
		n += bits.OnesCount8(b)
	}
	return n
}

// TrueFirst orders true before false.
func TrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// NumberedKey is the key under which a set holds a client with a number.
func NumberedKey(f Family, n uint32, client netip.Addr) string {
	if f == IP6 {
		b := client.As16()
		binary.BigEndian.PutUint32(b[8:], n)
		return string(b[:])
	}
	return string(AppendAddr(AppendNumber(nil, n), client))
}

// SplitNumberedKey reads back what NumberedKey wrote: of an IPv6 client without the bits that made
// room for the number. ok is false for a key of another length.
func SplitNumberedKey(f Family, key string) (n uint32, client netip.Addr, ok bool) {
	b := []byte(key)
	switch {
	case f == IP6 && len(b) == 16:
		n = binary.BigEndian.Uint32(b[8:])
		clear(b[8:12])
	case f == IP && len(b) == 8:
		n, b = binary.NativeEndian.Uint32(b), b[4:]
	default:
		return 0, client, false
	}
	client, _ = netip.AddrFromSlice(b)
	return n, client, true
}
