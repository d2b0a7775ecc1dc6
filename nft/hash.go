package nft

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"strconv"

	"github.com/google/nftables/expr"
)

// hashSeed is the seed of every HashedIndex. A client's slot has to be the same on every node,
// whatever its version, so the seed never changes.
const hashSeed = 0x6b6e6674 // "knft"

// HashedIndex is a number below n that follows from the client: from its address, or with ports from
// address and port. It comes last in a key. n is at least 1.
//
// The kernel hashes 32-bit words of this node's byte order, so nodes of different byte order send
// one client to different endpoints.
func HashedIndex(n uint32, ports bool) Part {
	if ports {
		return Part{kind: partHashedPorts, number: n}
	}
	return Part{kind: partHashed, number: n}
}

// HashesPorts reports whether the part is a HashedIndex, and whether ports count for it.
func (p Part) HashesPorts() (ports, hashed bool) {
	return p.kind == partHashedPorts, p.hashed()
}

func (p Part) hashed() bool { return p.kind == partHashed || p.kind == partHashedPorts }

// operand lists what is hashed.
func (p Part) operand() []Part {
	if p.kind == partHashedPorts {
		return []Part{Source, sourcePort}
	}
	return []Part{Source}
}

func (p Part) hashText(f Family) string {
	return "jhash " + keyText(f, p.operand()) + " mod " + strconv.FormatUint(uint64(p.number), 10) + " seed 0x" +
		strconv.FormatUint(hashSeed, 16)
}

// loadHash puts the hash into a word. It loads the operand where nft does: four words behind the end of
// the whole key, which has room for the address that nft looks up. An IPv6 key needs the last word.
func (p Part) loadHash(f Family, word, keyWords int) (x []expr.Any) {
	from, length := keyWords+4, 0
	for _, operand := range p.operand() {
		x = append(x, operand.load(f, register(from+length)))
		length += operand.words(f)
	}
	return append(x, &expr.Hash{
		SourceRegister: register(from), DestRegister: register(word), Length: uint32(4 * length),
		Modulus: p.number, Seed: hashSeed, Type: expr.HashTypeJenkins,
	})
}

// hashOf replaces what a hash was made of, the last parts of a key, by the hash; ok is false if no
// HashedIndex is made so.
func hashOf(key []Part, x *expr.Hash) (_ []Part, ok bool) {
	if x.Type != expr.HashTypeJenkins || x.Seed != hashSeed || x.Modulus == 0 {
		return key, false
	}
	n := len(key)
	switch {
	case n > 1 && key[n-1] == sourcePort && key[n-2] == Source:
		return append(key[:n-2], HashedIndex(x.Modulus, true)), true
	case n > 0 && key[n-1] == Source:
		return append(key[:n-1], HashedIndex(x.Modulus, false)), true
	}
	return key, false
}

// index is the number that the kernel computes for a client.
func (p Part) index(source netip.Addr, port uint16) int {
	b := source.AsSlice()
	if p.kind == partHashedPorts {
		b = AppendPort(b, port)
	}
	index, _ := bits.Mul32(jhash(b, hashSeed), p.number)
	return int(index)
}

// jhash is Bob Jenkins's hash (lookup3.c, hashlittle, of 2006; in the public domain) of a multiple of
// four bytes, at least four. The kernel takes all but the last words in this node's byte order.
func jhash(b []byte, seed uint32) uint32 {
	x := 0xdeadbeef + uint32(len(b)) + seed
	y, z := x, x
	for ; len(b) > 12; b = b[12:] {
		x += binary.NativeEndian.Uint32(b)
		y += binary.NativeEndian.Uint32(b[4:])
		z += binary.NativeEndian.Uint32(b[8:])
		x = (x - z) ^ bits.RotateLeft32(z, 4)
		z += y
		y = (y - x) ^ bits.RotateLeft32(x, 6)
		x += z
		z = (z - y) ^ bits.RotateLeft32(y, 8)
		y += x
		x = (x - z) ^ bits.RotateLeft32(z, 16)
		z += y
		y = (y - x) ^ bits.RotateLeft32(x, 19)
		x += z
		z = (z - y) ^ bits.RotateLeft32(y, 4)
		y += x
	}
	var last [12]byte
	copy(last[:], b)
	x += binary.LittleEndian.Uint32(last[:])
	y += binary.LittleEndian.Uint32(last[4:])
	z += binary.LittleEndian.Uint32(last[8:])
	z = (z ^ y) - bits.RotateLeft32(y, 14)
	x = (x ^ z) - bits.RotateLeft32(z, 11)
	y = (y ^ x) - bits.RotateLeft32(x, 25)
	z = (z ^ y) - bits.RotateLeft32(y, 16)
	x = (x ^ z) - bits.RotateLeft32(z, 4)
	y = (y ^ x) - bits.RotateLeft32(x, 14)
	return (z ^ y) - bits.RotateLeft32(y, 24)
}

// Lacks says why a kernel has no HashedIndex or Redirect, which only some Services need; nil if it has.
type Lacks struct{ Hash, Redirect error }
