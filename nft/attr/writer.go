package attr

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Writer appends netlink messages and attributes to a buffer. They close in the reverse order of
// opening; the offset that opening returns goes back into closing.
type Writer struct{ Buf []byte }

// OpenMessage begins a netfilter message.
func (w *Writer) OpenMessage(typ, flags uint16, seq uint32, f Family, resource uint16) (at int) {
	at = len(w.Buf)
	b := append(w.Buf, 0, 0, 0, 0)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	w.Buf = append(b, 0, 0, 0, 0) // the kernel knows the port of a socket
	w.Netfilter(f, resource)
	return at
}

// Netfilter writes the NetfilterHeader alone. The caller has written the message's own header.
func (w *Writer) Netfilter(f Family, resource uint16) {
	w.Buf = append(w.Buf, byte(f), unix.NFNETLINK_V0, byte(resource>>8), byte(resource))
}

// CloseMessage ends a message.
func (w *Writer) CloseMessage(at int) {
	binary.NativeEndian.PutUint32(w.Buf[at:], uint32(len(w.Buf)-at))
}

// Open begins a nested attribute.
func (w *Writer) Open(typ uint16) (at int) {
	at = len(w.Buf)
	w.Buf = append(w.Buf, 0, 0, byte(typ), 0)
	binary.NativeEndian.PutUint16(w.Buf[at+2:], typ|unix.NLA_F_NESTED)
	return at
}

// Close ends a nested attribute. The caller keeps it no longer than MaxLen.
func (w *Writer) Close(at int) {
	binary.NativeEndian.PutUint16(w.Buf[at:], uint16(len(w.Buf)-at))
}

// Head begins an attribute. The caller appends its value of n bytes, then calls Pad.
func (w *Writer) Head(typ uint16, n int) {
	b := binary.NativeEndian.AppendUint16(w.Buf, uint16(Header+n))
	w.Buf = binary.NativeEndian.AppendUint16(b, typ)
}

// Pad fills up to the next multiple of four bytes.
func (w *Writer) Pad() {
	for len(w.Buf)%4 != 0 {
		w.Buf = append(w.Buf, 0)
	}
}

// Bytes writes an attribute with any value.
func (w *Writer) Bytes(typ uint16, value string) {
	w.Head(typ, len(value))
	w.Buf = append(w.Buf, value...)
	w.Pad()
}

// Name writes a string and the NUL that the kernel wants behind it.
func (w *Writer) Name(typ uint16, value string) {
	w.Head(typ, len(value)+1)
	w.Buf = append(w.Buf, value...)
	w.Buf = append(w.Buf, 0)
	w.Pad()
}

// Addr writes an IPv4 or IPv6 address.
func (w *Writer) Addr(typ uint16, addr netip.Addr) {
	w.Head(typ, addr.BitLen()/8)
	w.Buf, _ = addr.WithZone("").AppendBinary(w.Buf) // it returns no error
}

// Uint8 writes a number of one byte.
func (w *Writer) Uint8(typ uint16, value uint8) {
	w.Head(typ, 1)
	w.Buf = append(w.Buf, value, 0, 0, 0)
}

// Uint16 writes a number in network order, as do Uint32 and Uint64.
func (w *Writer) Uint16(typ, value uint16) {
	w.Head(typ, 2)
	w.Buf = append(w.Buf, byte(value>>8), byte(value), 0, 0)
}

// Uint32 is Uint16 for four bytes.
func (w *Writer) Uint32(typ uint16, value uint32) {
	w.Head(typ, 4)
	w.Buf = binary.BigEndian.AppendUint32(w.Buf, value)
}

// Uint64 is Uint16 for eight bytes.
func (w *Writer) Uint64(typ uint16, value uint64) {
	w.Head(typ, 8)
	w.Buf = binary.BigEndian.AppendUint64(w.Buf, value)
}
