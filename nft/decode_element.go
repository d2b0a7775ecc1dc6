package nft

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft/attr"
)

// elementDecoder collects the elements of one set.
type elementDecoder struct {
	ranges   rangeKind
	keyLen   int
	elements map[string]Element
	points   []point
	verdicts map[string]*Verdict // those met so far: elements share few
	repeated bool                // an element came twice
	packets  map[string]uint64   // what the counters of elements say; nil if nobody asks
}

// A point is an element of a set of ranges: the first key of one, or the first key behind.
type point struct {
	key     string
	end     bool
	element Element
}

func newElementDecoder(f Family, s *Set) *elementDecoder {
	return &elementDecoder{
		ranges: s.ranges(), keyLen: s.keyLen(f),
		elements: make(map[string]Element), verdicts: make(map[string]*Verdict),
	}
}

// message takes the attributes of one message of the dump.
func (d *elementDecoder) message(b []byte) {
	items := attr.NewReader(attr.Find(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS))
	for items.Next() {
		d.element(items.Value)
	}
}

func (d *elementDecoder) element(b []byte) {
	var key, keyEnd, counter []byte
	var el Element
	end := false
	attrs := attr.NewReader(b)
	for attrs.Next() {
		switch attrs.Type {
		case unix.NFTA_SET_ELEM_EXPR:
			counter = attrs.Value
		case unix.NFTA_SET_ELEM_KEY:
			key = attr.Find(attrs.Value, unix.NFTA_DATA_VALUE)
		case attrElemKeyEnd:
			keyEnd = attr.Find(attrs.Value, unix.NFTA_DATA_VALUE)
		case unix.NFTA_SET_ELEM_DATA:
			if value := attr.Find(attrs.Value, unix.NFTA_DATA_VALUE); value != nil {
				el.Data = string(value)
			} else {
				el.Verdict = d.verdict(attr.Find(attrs.Value, unix.NFTA_DATA_VERDICT))
			}
		case unix.NFTA_SET_ELEM_FLAGS:
			end = attrs.Uint32()&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_USERDATA:
			el.Comment = decodeComment(attrs.Value)
		case unix.NFTA_SET_ELEM_TIMEOUT:
			el.life().Timeout = milliseconds(attrs.Uint64())
		case unix.NFTA_SET_ELEM_EXPIRATION:
			el.life().Expires = milliseconds(attrs.Uint64())
		}
	}
	d.add(key, keyEnd, end, el)
	if d.packets != nil && len(key) == d.keyLen {
		d.packets[string(key)] = packetsOf(counter)
	}
}

// packetsOf returns how many packets a counter says that it has seen.
func packetsOf(b []byte) uint64 {
	if string(attr.Find(b, unix.NFTA_EXPR_NAME)) != "counter\x00" {
		return 0
	}
	data := attr.NewReader(attr.Find(b, unix.NFTA_EXPR_DATA))
	for data.Next() {
		if data.Type == unix.NFTA_COUNTER_PACKETS {
			return data.Uint64()
		}
	}
	return 0
}

// add files an element; a key of another length than the set's is passed over.
func (d *elementDecoder) add(key, keyEnd []byte, end bool, el Element) {
	if len(key) != d.keyLen {
		return
	}
	if d.ranges == twoPoints {
		d.points = append(d.points, point{string(key), end, el})
		return
	}
	before := len(d.elements)
	switch {
	case d.ranges == twoKeys && len(keyEnd) == d.keyLen:
		d.elements[string(key)+string(keyEnd)] = el
	case d.ranges == twoKeys: // a range of one key
		d.elements[string(key)+string(key)] = el
	default:
		d.elements[string(key)] = el
	}
	d.repeated = d.repeated || len(d.elements) == before
}

// verdict decodes a verdict. Elements that have the same one share it.
func (d *elementDecoder) verdict(b []byte) *Verdict {
	if v := d.verdicts[string(b)]; v != nil {
		return v
	}
	v := new(Verdict)
	attrs := attr.NewReader(b)
	for attrs.Next() {
		switch attrs.Type {
		case unix.NFTA_VERDICT_CODE:
			v.Kind = VerdictKind(int32(attrs.Uint32()))
		case unix.NFTA_VERDICT_CHAIN:
			v.Chain = attrs.Name()
		}
	}
	d.verdicts[string(b)] = v
	return v
}

func (e *Element) life() *Life {
	if e.Life == nil {
		e.Life = new(Life)
	}
	return e.Life
}

// milliseconds is a number of the kernel as a duration; the longest one if it is longer.
func milliseconds(n uint64) time.Duration {
	const longest = uint64(1<<63-1) / uint64(time.Millisecond)
	return time.Duration(min(n, longest)) * time.Millisecond
}

// finish returns the elements; those of a set of ranges are made of their points.
func (d *elementDecoder) finish() map[string]Element {
	slices.SortFunc(d.points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.key, b.key), trueFirst(a.end, b.end)) // one range ends before the next begins
	})
	for i, p := range d.points {
		if !p.end {
			d.elements[p.key+d.lastKey(d.points[i+1:])] = p.element
		}
	}
	return d.elements
}

// addRange adds the points of a range.
func (d *elementDecoder) addRange(key string, element Element) {
	first, last := key[:d.keyLen], key[d.keyLen:]
	d.points = append(d.points, point{first, false, element})
	if end, ok := successor(last); ok {
		d.points = append(d.points, point{string(end[:d.keyLen]), true, Element{}})
	}
}

// lastKey is the last key of a range, which the next point tells: it is the first one behind.
// Without one the range reaches to the end.
func (d *elementDecoder) lastKey(after []point) string {
	if len(after) > 0 {
		return predecessor(after[0].key)
	}
	last := make([]byte, d.keyLen)
	for i := range last {
		last[i] = 0xff
	}
	return string(last)
}

// predecessor is the key before key, in network order; before the first comes the last.
func predecessor(key string) string {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		b[i]--
		if b[i] != 0xff {
			break
		}
	}
	return string(b)
}

// isEndPoint reports whether an element, as it is sent, is the end of a range.
func isEndPoint(b []byte) bool {
	flags := attr.Find(b, unix.NFTA_SET_ELEM_FLAGS)
	return len(flags) == 4 && binary.BigEndian.Uint32(flags)&unix.NFT_SET_ELEM_INTERVAL_END != 0
}
