package nft

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// attributes walks over a list of netlink attributes. It takes hostile bytes: what does not
// hold a whole attribute ends the walk.
type attributes struct {
	b     []byte
	rest  int    // where the next attribute begins
	at    int    // where the current one begins
	typ   uint16 // its type, without flags
	value []byte // its value, without padding
}

func (a *attributes) next() bool {
	if a.rest > len(a.b)-attrLen {
		return false
	}
	n := int(binary.NativeEndian.Uint16(a.b[a.rest:]))
	if n < attrLen || n > len(a.b)-a.rest {
		return false
	}
	a.at = a.rest
	a.typ = binary.NativeEndian.Uint16(a.b[a.at+2:]) & attrTypeMask
	a.value = a.b[a.at+attrLen : a.at+n]
	a.rest = a.at + (n+3)&^3
	return true
}

// end is where the current attribute ends, padding included.
func (a *attributes) end() int { return a.rest }

// name is the value as a string that ends at the first NUL.
func (a *attributes) name() string {
	name, _, _ := bytes.Cut(a.value, []byte{0})
	return string(name)
}

// uint32 is the value as a number; zero if it has another length.
func (a *attributes) uint32() uint32 {
	if len(a.value) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(a.value)
}

func (a *attributes) uint64() uint64 {
	if len(a.value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(a.value)
}

// find returns the value of the first attribute of a type; nil if there is none.
func find(b []byte, typ uint16) []byte {
	a := attributes{b: b}
	for a.next() {
		if a.typ == typ {
			return a.value
		}
	}
	return nil
}

// messageAt is the netlink message that begins at an offset; nil if it is not all there.
func messageAt(b []byte, at int) []byte {
	if at > len(b)-headerLen {
		return nil
	}
	n := binary.NativeEndian.Uint32(b[at:])
	if n < headerLen || uint64(n) > uint64(len(b)-at) {
		return nil
	}
	return b[at : at+int(n)]
}

// A reply is a netlink message from the kernel.
type reply struct {
	typ, flags uint16
	seq        uint32
	body       []byte
}

// replies cuts what was received into messages; it ends at the first one that is not whole.
func replies(b []byte, each func(reply)) {
	for at := 0; ; {
		msg := messageAt(b, at)
		if msg == nil {
			return
		}
		each(reply{
			typ:   binary.NativeEndian.Uint16(msg[4:]),
			flags: binary.NativeEndian.Uint16(msg[6:]),
			seq:   binary.NativeEndian.Uint32(msg[8:]),
			body:  msg[headerLen:],
		})
		at += (len(msg) + 3) &^ 3
	}
}

// family is the family of the nfgenmsg that a message of nf_tables begins with.
func (r *reply) family() Family {
	if len(r.body) < nfHeaderLen {
		return 0
	}
	return Family(r.body[0])
}

// attributes are those behind the nfgenmsg.
func (r *reply) attributes() []byte {
	if len(r.body) < nfHeaderLen {
		return nil
	}
	return r.body[nfHeaderLen:]
}

// An ack is the kernel's answer to one message: zero or an errno, and with extended
// acknowledgement, where in the message the trouble is and a text.
type ack struct {
	errno  unix.Errno
	offset int
	text   string
}

// ack decodes the body of NLMSG_ERROR, in which the message itself is cut to its header
// (NETLINK_CAP_ACK), or of NLMSG_DONE. Source: struct nlmsgerr in linux/netlink.h.
func (r *reply) ack() (a ack) {
	if len(r.body) < 4 {
		return ack{errno: unix.EBADMSG}
	}
	a.errno = unix.Errno(-int32(binary.NativeEndian.Uint32(r.body)))
	const errorLen = 4 + headerLen
	if r.flags&unix.NLM_F_ACK_TLVS == 0 || len(r.body) < errorLen {
		return a
	}
	tlvs := attributes{b: r.body[errorLen:]}
	for tlvs.next() {
		switch {
		case tlvs.typ == unix.NLMSGERR_ATTR_MSG:
			a.text = tlvs.name()
		case tlvs.typ == unix.NLMSGERR_ATTR_OFFS && len(tlvs.value) == 4:
			a.offset = int(binary.NativeEndian.Uint32(tlvs.value))
		}
	}
	return a
}
