package wire

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/change"
)

// An ElementDecoder decodes the elements of one set, message by message.
type ElementDecoder struct {
	*change.Listing
	// Packets holds the counts of the elements by their keys. Nil, as at first, asks for none.
	Packets  map[string]uint64
	verdicts map[string]*nft.Verdict // decoded so far: elements share few
	comments map[string]string       // the same; nil for a single message
}

// NewElementDecoder returns a decoder for a set in a table of family f.
func NewElementDecoder(f nft.Family, s *nft.Set) *ElementDecoder {
	return &ElementDecoder{Listing: change.NewListing(f, s), verdicts: make(map[string]*nft.Verdict),
		comments: make(map[string]string)}
}

// Message decodes the attributes of one message of a dump.
func (d *ElementDecoder) Message(b []byte) {
	items := attr.NewReader(attr.Find(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS))
	for items.Next() {
		listed, counter := d.element(items.Value)
		if d.Add(&listed) && d.Packets != nil {
			d.Packets[string(listed.Key)] = packetsOf(counter)
		}
	}
}

// element decodes one element. Its keys are within b.
func (d *ElementDecoder) element(b []byte) (listed change.ListedElement, counter []byte) {
	el := &listed.Element
	attrs := attr.NewReader(b)
	for attrs.Next() {
		switch attrs.Type {
		case unix.NFTA_SET_ELEM_EXPR:
			counter = attrs.Value
		case unix.NFTA_SET_ELEM_KEY:
			listed.Key = attr.Find(attrs.Value, unix.NFTA_DATA_VALUE)
		case attrElemKeyEnd:
			listed.KeyEnd = attr.Find(attrs.Value, unix.NFTA_DATA_VALUE)
		case unix.NFTA_SET_ELEM_DATA:
			if value := attr.Find(attrs.Value, unix.NFTA_DATA_VALUE); value != nil {
				el.Data = string(value)
			} else {
				el.Verdict = d.verdict(attr.Find(attrs.Value, unix.NFTA_DATA_VERDICT))
			}
		case unix.NFTA_SET_ELEM_FLAGS:
			listed.End = attrs.Uint32()&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_USERDATA:
			el.Comment = d.comment(decodeComment(attrs.Value))
		case unix.NFTA_SET_ELEM_TIMEOUT:
			lifeOf(el).Timeout = milliseconds(attrs.Uint64())
		case unix.NFTA_SET_ELEM_EXPIRATION:
			lifeOf(el).Expires = milliseconds(attrs.Uint64())
		}
	}
	return listed, counter
}

// packetsOf returns how many packets a counter has seen.
func packetsOf(b []byte) uint64 {
	if string(attr.Find(b, unix.NFTA_EXPR_NAME)) != "counter\x00" {
		return 0
	}
	packets := attr.Reader{Value: attr.Find(attr.Find(b, unix.NFTA_EXPR_DATA), unix.NFTA_COUNTER_PACKETS)}
	return packets.Uint64()
}

// verdict decodes a verdict. Elements with the same verdict share it.
func (d *ElementDecoder) verdict(b []byte) *nft.Verdict {
	if v := d.verdicts[string(b)]; v != nil {
		return v
	}
	v := new(DecodeVerdict(b))
	d.verdicts[string(b)] = v
	return v
}

func (d *ElementDecoder) comment(b []byte) string {
	c, known := d.comments[string(b)]
	if known {
		return c
	}
	c = string(b)
	if d.comments != nil {
		d.comments[c] = c
	}
	return c
}

// DecodeVerdict returns a verdict.
func DecodeVerdict(b []byte) (v nft.Verdict) {
	attrs := attr.NewReader(b)
	for attrs.Next() {
		switch attrs.Type {
		case unix.NFTA_VERDICT_CODE:
			v.Kind = nft.VerdictKind(int32(attrs.Uint32()))
		case unix.NFTA_VERDICT_CHAIN:
			v.Chain = attrs.Name()
		}
	}
	return v
}

func lifeOf(e *nft.Element) *nft.Life {
	if e.Life == nil {
		e.Life = new(nft.Life)
	}
	return e.Life
}

// milliseconds turns the kernel's number into a duration; the longest one if the number is larger.
func milliseconds(n uint64) time.Duration {
	const longest = uint64(1<<63-1) / uint64(time.Millisecond)
	return time.Duration(min(n, longest)) * time.Millisecond
}
