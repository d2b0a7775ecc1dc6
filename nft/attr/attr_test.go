package attr

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// sample is a message with an attribute of each kind.
func sample(w *Writer) {
	at := w.OpenMessage(0x0a0c, unix.NLM_F_REQUEST, 7, IPv6, 0x0102)
	w.Name(1, "kube-nft")
	list := w.Open(2)
	item := w.Open(3)
	w.Bytes(4, "\x0a\x60\x00\x01\x11")
	w.Uint8(5, 17)
	w.Uint16(6, 53)
	w.Uint32(7, 0x01020304)
	w.Uint64(8, 0x0102030405060708)
	w.Addr(9, netip.AddrFrom4([4]byte{10, 96, 0, 1}))
	w.Close(item)
	w.Close(list)
	w.CloseMessage(at)
}

// TestWriter holds every byte of a message against struct nlmsghdr, nfgenmsg and nlattr on a
// little-endian machine.
func TestWriter(t *testing.T) {
	if !littleEndian() {
		t.Skip("the expected bytes are those of a little-endian machine")
	}
	var w Writer
	sample(&w)
	want := []byte{
		100, 0, 0, 0, 0x0c, 0x0a, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, // nlmsghdr
		10, 0, 1, 2, // nfgenmsg
		13, 0, 1, 0, 'k', 'u', 'b', 'e', '-', 'n', 'f', 't', 0, 0, 0, 0,
		64, 0, 2, 0x80,
		60, 0, 3, 0x80,
		9, 0, 4, 0, 10, 96, 0, 1, 17, 0, 0, 0,
		5, 0, 5, 0, 17, 0, 0, 0,
		6, 0, 6, 0, 0, 53, 0, 0,
		8, 0, 7, 0, 1, 2, 3, 4,
		12, 0, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8,
		8, 0, 9, 0, 10, 96, 0, 1,
	}
	if !bytes.Equal(w.Buf, want) {
		t.Errorf("got\n%v, want\n%v", w.Buf, want)
	}
}

func littleEndian() bool {
	var w Writer
	w.Head(1, 0)
	return w.Buf[0] == Header
}

// TestReader reads back what a Writer wrote.
func TestReader(t *testing.T) {
	var w Writer
	sample(&w)
	var got Reply
	Replies(append(w.Buf, 1, 2, 3), func(r Reply) { got = r })
	if got.Type != 0x0a0c || got.Flags != unix.NLM_F_REQUEST || got.Seq != 7 || got.Family() != IPv6 {
		t.Fatalf("header %+v", got)
	}
	list := NewReader(got.Attributes())
	if !list.Next() || list.Type != 1 || list.Name() != "kube-nft" || list.At() != 0 || list.End() != 16 {
		t.Errorf("name %+v", list)
	}
	if !list.Next() || list.Type != 2 || list.At() != 16 || list.End() != 80 {
		t.Errorf("list %+v", list)
	}
	items := list.Nested()
	if !items.Next() || items.Type != 3 {
		t.Errorf("item %+v", items)
	}
	item, types := items.Nested(), ""
	for item.Next() {
		types += string(rune('0' + item.Type))
		switch {
		case item.Type == 4 && string(item.Value) == "\x0a\x60\x00\x01\x11":
		case item.Type == 5 && item.Uint8() == 17:
		case item.Type == 6 && item.Uint16() == 53:
		case item.Type == 7 && item.Uint32() == 0x01020304:
		case item.Type == 8 && item.Uint64() == 0x0102030405060708:
		case item.Type == 9 && item.Addr(IPv4) == netip.AddrFrom4([4]byte{10, 96, 0, 1}):
		default:
			t.Errorf("attribute %d is %v", item.Type, item.Value)
		}
	}
	if types != "456789" || items.Next() || list.Next() || list.Err() != nil {
		t.Errorf("types %s, error %v", types, list.Err())
	}
}

// TestFind finds attributes, nested ones too.
func TestFind(t *testing.T) {
	var w Writer
	sample(&w)
	b := w.Buf[MessageHeader+NetfilterHeader:]
	if got := Name(Find(b, 1)); got != "kube-nft" {
		t.Errorf("name %q", got)
	}
	if got := Uint32(Find(Find(Find(b, 2), 3), 7)); got != 0x01020304 {
		t.Errorf("number %#x", got)
	}
	if Find(b, 3) != nil || Find(Find(b, 2), 1) != nil || Find(nil, 1) != nil || Uint32(Find(b, 1)) != 0 {
		t.Error("found what is not there")
	}
}

// tlv is an attribute whose header claims a length.
func tlv(length, typ uint16, value ...byte) []byte {
	return append(binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, length), typ), value...)
}

// TestMalformed shows that what is malformed ends the walk and is known at the top.
func TestMalformed(t *testing.T) {
	for _, tt := range []struct {
		name string
		b    []byte
		read func(*Reader)
		seen int
	}{
		{name: "a header cut off", b: []byte{8, 0, 1}},
		{name: "a length below the header", b: tlv(3, 1)},
		{name: "a length beyond the end", b: tlv(9, 1, 1, 2, 3, 4)},
		{name: "behind a good one", b: tlv(4, 1, 1), seen: 1},
		{name: "a short number", b: tlv(6, 1, 1, 2, 0, 0), seen: 1, read: func(r *Reader) { r.Uint32() }},
		{name: "a long number", b: tlv(6, 1, 1, 2, 0, 0), seen: 1, read: func(r *Reader) { r.Uint8() }},
		{name: "no number", b: tlv(4, 1), seen: 1, read: func(r *Reader) { r.Uint16(); r.Uint64() }},
		{name: "an address of the other family", b: tlv(8, 1, 1, 2, 3, 4), seen: 1,
			read: func(r *Reader) { r.Addr(IPv6) }},
		{name: "within", b: tlv(7, 1, 1, 2, 3), seen: 1, read: func(r *Reader) {
			nested := r.Nested()
			nested.Next()
		}},
	} {
		list, seen := NewReader(tt.b), 0
		for list.Next() {
			seen++
			if tt.read != nil {
				tt.read(&list)
			}
		}
		if seen != tt.seen || list.Err() != ErrMalformed {
			t.Errorf("%s: %d attributes, error %v", tt.name, seen, list.Err())
		}
	}
	whole := NewReader(tlv(5, 1, 9)) // the last one needs no padding
	if !whole.Next() || whole.Uint8() != 9 || whole.Next() || whole.Err() != nil {
		t.Errorf("without padding: %v", whole.Err())
	}
}

// TestAck decodes what the kernel answers.
func TestAck(t *testing.T) {
	long := func(attributes ...byte) []byte {
		errno := binary.NativeEndian.AppendUint32(nil, ^uint32(unix.ENOENT)+1)
		return append(append(errno, make([]byte, MessageHeader)...), attributes...)
	}
	var tlvs Writer
	tlvs.Name(unix.NLMSGERR_ATTR_MSG, "chain is busy")
	tlvs.Buf = binary.NativeEndian.AppendUint32(append(tlvs.Buf, tlv(8, unix.NLMSGERR_ATTR_OFFS)...), 44)
	for _, tt := range []struct {
		name  string
		reply Reply
		want  Ack
	}{
		{"cut off", Reply{Body: []byte{1, 2}}, Ack{Errno: unix.EBADMSG}},
		{"an acknowledgement", Reply{Body: make([]byte, 20)}, Ack{}},
		{"an error", Reply{Body: long()}, Ack{Errno: unix.ENOENT}},
		{"flags without room", Reply{Flags: unix.NLM_F_ACK_TLVS, Body: long()[:8]}, Ack{Errno: unix.ENOENT}},
		{"extended", Reply{Flags: unix.NLM_F_ACK_TLVS, Body: long(tlvs.Buf...)}, Ack{unix.ENOENT, 44, "chain is busy"}},
	} {
		if got := tt.reply.Ack(); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
	short := Reply{Body: []byte{2, 0}}
	if short.Family() != 0 || short.Attributes() != nil {
		t.Error("a message without its header has a family or attributes")
	}
}

// TestFamily spells both families in both ways.
func TestFamily(t *testing.T) {
	for _, tt := range []struct {
		addr              netip.Addr
		family            Family
		kubernetes, inNFT string
	}{
		{netip.MustParseAddr("10.0.0.1"), IPv4, "IPv4", "ip"},
		{netip.MustParseAddr("fd00::1"), IPv6, "IPv6", "ip6"},
		{netip.MustParseAddr("::ffff:10.0.0.1"), IPv6, "IPv6", "ip6"},
		{netip.Addr{}, 0, "Family(0)", "family-0"},
	} {
		f := Of(tt.addr)
		if f != tt.family || f.String() != tt.kubernetes || f.NFT() != tt.inNFT {
			t.Errorf("%v: %v, %s, %s", tt.addr, uint8(f), f, f.NFT())
		}
	}
}

// TestNoAllocations holds both directions to their promise.
func TestNoAllocations(t *testing.T) {
	var w Writer
	sample(&w)
	allocations := testing.AllocsPerRun(100, func() {
		w.Buf = w.Buf[:0]
		sample(&w)
		Replies(w.Buf, func(r Reply) {
			list := NewReader(r.Attributes())
			for list.Next() {
				nested := list.Nested()
				for nested.Next() {
					_ = nested.Uint32()
				}
			}
			_ = Find(Find(r.Attributes(), 2), 3)
		})
	})
	if allocations != 0 {
		t.Errorf("%v allocations for a message written and read", allocations)
	}
}

// FuzzReader feeds hostile bytes to everything that reads.
func FuzzReader(f *testing.F) {
	var w Writer
	sample(&w)
	f.Add(w.Buf)
	f.Add([]byte{36, 0, 0, 0, 2, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 12, 0, 4, 0, 8, 0, 2, 0,
		1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		walk(t, NewReader(b), 8)
		end := 0
		Replies(b, func(r Reply) {
			end += MessageHeader + len(r.Body)
			_, _ = r.Ack(), r.Family()
			walk(t, NewReader(r.Attributes()), 8)
		})
		if end > len(b) {
			t.Errorf("%d bytes of messages in %d", end, len(b))
		}
		_ = Find(b, 1)
	})
}

// walk reads a list in every way and holds it to what a Reader promises.
func walk(t *testing.T, list Reader, depth int) {
	end := 0
	for list.Next() {
		if list.At() != end || list.At()+Header+len(list.Value) > list.End() {
			t.Errorf("an attribute of %d bytes from %d to %d, the one before ended at %d", len(list.Value), list.At(),
				list.End(), end)
		}
		end = list.End()
		_, _, _, _, _ = list.Name(), list.Uint8(), list.Uint16(), list.Uint32(), list.Uint64()
		if addr := list.Addr(IPv6); addr.IsValid() != (len(list.Value) == 16) {
			t.Errorf("%d bytes are the address %s", len(list.Value), addr)
		}
		if depth > 0 {
			walk(t, list.Nested(), depth-1)
		}
	}
}

// BenchmarkWriter is what a message with eight attributes costs.
func BenchmarkWriter(b *testing.B) {
	var w Writer
	b.ReportAllocs()
	for b.Loop() {
		w.Buf = w.Buf[:0]
		sample(&w)
	}
}

// BenchmarkReader is what it costs to read it.
func BenchmarkReader(b *testing.B) {
	var w Writer
	sample(&w)
	b.ReportAllocs()
	for b.Loop() {
		_ = Find(Find(Find(w.Buf[MessageHeader+NetfilterHeader:], 2), 3), 8)
	}
}
