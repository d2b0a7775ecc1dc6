package nft

import (
	"encoding/binary"
	"net/netip"
)

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
