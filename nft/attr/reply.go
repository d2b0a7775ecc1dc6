package attr

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// MessageAt returns the netlink message that begins at an offset; nil if it is incomplete.
func MessageAt(b []byte, at int) []byte {
	if at < 0 || at > len(b)-MessageHeader {
		return nil
	}
	n := binary.NativeEndian.Uint32(b[at:])
	if n < MessageHeader || uint64(n) > uint64(len(b)-at) {
		return nil
	}
	return b[at : at+int(n)]
}

// A Reply is a netlink message from the kernel.
type Reply struct {
	Type, Flags uint16
	Seq         uint32
	Body        []byte // all behind the header
}

// Replies splits received bytes into messages. It ends at the first incomplete one.
func Replies(b []byte, each func(Reply)) {
	for at := 0; ; {
		message := MessageAt(b, at)
		if message == nil {
			return
		}
		each(Reply{
			Type:  binary.NativeEndian.Uint16(message[4:]),
			Flags: binary.NativeEndian.Uint16(message[6:]),
			Seq:   binary.NativeEndian.Uint32(message[8:]),
			Body:  message[MessageHeader:],
		})
		at += (len(message) + 3) &^ 3
	}
}

// Family is the family of a netfilter message; zero if the message is too short for one.
func (r *Reply) Family() Family {
	if len(r.Body) < NetfilterHeader {
		return 0
	}
	return Family(r.Body[0])
}

// Attributes returns the attributes of a netfilter message.
func (r *Reply) Attributes() []byte {
	if len(r.Body) < NetfilterHeader {
		return nil
	}
	return r.Body[NetfilterHeader:]
}

// An Ack is the kernel's answer to one message: zero or an errno. Extended acknowledgement adds the
// offset of the trouble in the message, and a text.
type Ack struct {
	Errno  unix.Errno
	Offset int
	Text   string
}

// Ack decodes the body of NLMSG_ERROR or NLMSG_DONE. In NLMSG_ERROR the kernel repeats only the
// header of the message (NETLINK_CAP_ACK). Source: struct nlmsgerr in linux/netlink.h.
func (r *Reply) Ack() (a Ack) {
	if len(r.Body) < 4 {
		return Ack{Errno: unix.EBADMSG}
	}
	a.Errno = unix.Errno(-int32(binary.NativeEndian.Uint32(r.Body)))
	const errorLen = 4 + MessageHeader
	if r.Flags&unix.NLM_F_ACK_TLVS == 0 || len(r.Body) < errorLen {
		return a
	}
	list := NewReader(r.Body[errorLen:])
	for list.Next() {
		switch {
		case list.Type == unix.NLMSGERR_ATTR_MSG:
			a.Text = list.Name()
		case list.Type == unix.NLMSGERR_ATTR_OFFS && len(list.Value) == 4:
			a.Offset = int(binary.NativeEndian.Uint32(list.Value))
		}
	}
	return a
}
