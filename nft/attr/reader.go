// Package attr reads and writes netlink attributes. nf_tables, connection tracking and ipset use the same format.
//
// To read, make a [Reader] and walk over the attributes:
//
//	list := attr.NewReader(b)
//	for list.Next() {
//		switch list.Type {
//		case unix.NFTA_TABLE_NAME:
//			name = list.Name()
//		}
//	}
//
// To write, append to a [Writer]:
//
//	var w attr.Writer
//	message := w.OpenMessage(typ, unix.NLM_F_REQUEST, seq, attr.IPv4, 0)
//	w.Name(unix.NFTA_TABLE_NAME, "kube-nft")
//	w.CloseMessage(message) // w.Buf is ready to be sent
//
// [Replies] splits what a netfilter socket received into messages. [Reply.Ack] decodes the kernel's answer to one of
// ours.
//
// The package accepts any bytes. It allocates only the Writer's buffer, opens no socket and imports no other package of
// this module.
package attr

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Lengths in bytes. Lengths and types are in host order, values in network order.
const (
	MessageHeader   = unix.SizeofNlMsghdr // before each message: struct nlmsghdr
	NetfilterHeader = 4                   // before the attributes of a message of netfilter: struct nfgenmsg
	Header          = unix.SizeofNlAttr   // before the value of an attribute: struct nlattr
	MaxLen          = 1<<16 - 1           // of an attribute with its header

	typeMask = 0x3fff // NLA_TYPE_MASK in linux/netlink.h
)

// ErrMalformed says that bytes are no proper netlink attributes.
var ErrMalformed = errors.New("malformed netlink attributes")

// A Reader walks over a list of netlink attributes in place. It takes hostile bytes: the walk ends
// where no whole attribute follows, and a number of the wrong length reads as zero. Err reports
// both.
type Reader struct {
	Type  uint16 // of the current attribute, without flags
	Value []byte // of the current attribute, without padding

	b      []byte
	rest   int // where the next attribute begins
	at     int // where the current one begins
	bad    bool
	parent *Reader // malformed when this Reader is
}

// NewReader returns a Reader that stands before the first attribute of b.
func NewReader(b []byte) Reader { return Reader{b: b} }

// Nested returns a Reader of the attributes within the current one. If they are malformed, so is r.
func (r *Reader) Nested() Reader { return Reader{b: r.Value, parent: r} }

// Next moves to the next attribute and reports whether there is one.
func (r *Reader) Next() bool {
	if r.rest > len(r.b)-Header {
		return r.rest < len(r.b) && r.malformed()
	}
	n := int(binary.NativeEndian.Uint16(r.b[r.rest:]))
	if n < Header || n > len(r.b)-r.rest {
		return r.malformed()
	}
	r.at = r.rest
	r.Type = binary.NativeEndian.Uint16(r.b[r.at+2:]) & typeMask
	r.Value = r.b[r.at+Header : r.at+n]
	r.rest = r.at + (n+3)&^3
	return true
}

// malformed marks the Reader and its parents as malformed and returns false.
func (r *Reader) malformed() bool {
	for ; r != nil; r = r.parent {
		r.bad = true
	}
	return false
}

// Err returns ErrMalformed if anything read so far was malformed.
func (r *Reader) Err() error {
	if r.bad {
		return ErrMalformed
	}
	return nil
}

// At is where the current attribute begins in the list.
func (r *Reader) At() int { return r.at }

// End is where the current attribute ends in the list, padding included.
func (r *Reader) End() int { return r.rest }

// Name is the value as a string that ends at the first NUL.
func (r *Reader) Name() string { return Name(r.Value) }

// Uint8 is the value as a number; zero if it has another length. Uint16, Uint32 and Uint64 do the
// same for longer numbers.
func (r *Reader) Uint8() uint8 { return r.number(1)[0] }

// Uint16 is Uint8 for two bytes.
func (r *Reader) Uint16() uint16 { return binary.BigEndian.Uint16(r.number(2)) }

// Uint32 is Uint8 for four bytes.
func (r *Reader) Uint32() uint32 { return binary.BigEndian.Uint32(r.number(4)) }

// Uint64 is Uint8 for eight bytes.
func (r *Reader) Uint64() uint64 { return binary.BigEndian.Uint64(r.number(8)) }

// zero is the number in place of a malformed one.
var zero [8]byte

// number is the value, which must have n bytes.
func (r *Reader) number(n int) []byte {
	if len(r.Value) != n {
		r.malformed()
		return zero[:n]
	}
	return r.Value
}

// Addr is the value as an address of a family; the zero address if the value has another length.
func (r *Reader) Addr(f Family) netip.Addr {
	addr, _ := netip.AddrFromSlice(r.Value)
	if Of(addr) != f {
		r.malformed()
		return netip.Addr{}
	}
	return addr
}

// Name returns a value as a string that ends at the first NUL.
func Name(value []byte) string {
	name, _, _ := bytes.Cut(value, []byte{0})
	return string(name)
}

// Uint32 returns a value as a number; zero if it has another length.
func Uint32(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}

// Uint64 is the function Uint32 for eight bytes.
func Uint64(value []byte) uint64 {
	if len(value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}

// Find returns the value of the first attribute of a type; nil if there is none.
func Find(b []byte, typ uint16) []byte {
	list := Reader{b: b}
	for list.Next() {
		if list.Type == typ {
			return list.Value
		}
	}
	return nil
}
