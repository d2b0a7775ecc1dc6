package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/change"
)

// maxList is the length at which a list of elements continues in the next message. A list is one
// attribute, of at most 64 KiB; an element of ours takes less than 1 KiB.
const maxList = attr.MaxLen - 1024

// messageDestroyElements deletes elements and passes over missing ones: NFT_MSG_DESTROYSETELEM in
// linux/netfilter/nf_tables.h, since kernel 6.3.
const messageDestroyElements = 30

// elements writes elements of a set, in as many messages as they need. It allocates nothing for an
// element.
func (e *encoder) elements(i int, op *nft.Op) {
	typ, flags := uint16(unix.NFT_MSG_NEWSETELEM), uint16(flagsCreate)
	switch op.Verb {
	case nft.Delete:
		typ, flags = unix.NFT_MSG_DELSETELEM, unix.NLM_F_REQUEST
	case nft.Destroy:
		typ, flags = messageDestroyElements, unix.NLM_F_REQUEST
	}
	shape := elementShape{
		ranges: op.Set.Ranges(), keyLen: op.Set.KeyLen(e.family),
		verdicts: op.Set.Verdicts, keysOnly: op.Verb != nft.Add,
	}
	shape.wantKey = shape.keyLen
	if shape.ranges != nft.NoRanges {
		shape.wantKey = 2 * shape.keyLen
	}
	for next := 0; next < len(op.Elements) && e.err == nil; {
		first := next
		e.message(i, first, typ, flags, func() {
			e.Name(unix.NFTA_SET_ELEM_LIST_SET, op.Set.Name)
			list := e.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
			for next < len(op.Elements) && len(e.Buf)-list < maxList && e.err == nil {
				e.element(&shape, &op.Elements[next])
				if e.err != nil {
					e.bad = next
				}
				next++
			}
			e.Close(list)
		})
	}
}

// elementShape holds what all elements of an operation have in common.
type elementShape struct {
	keyLen   int
	wantKey  int // length of the key of an element, which may be a range
	ranges   nft.Ranges
	verdicts bool
	keysOnly bool // for a deletion
}

func (e *encoder) element(s *elementShape, el *nft.KeyedElement) {
	if len(el.Key) != s.wantKey {
		e.fail(fmt.Errorf("the key has %d bytes instead of %d", len(el.Key), s.wantKey))
		return
	}
	switch first, last := el.Key[:s.keyLen], el.Key[len(el.Key)-s.keyLen:]; s.ranges {
	case nft.NoRanges:
		e.oneElement(s, el, first, "", false)
	case nft.TwoKeys:
		e.oneElement(s, el, first, last, false)
	default:
		end, ok := change.Successor(last)
		e.oneElement(s, el, first, "", !ok)
		if ok {
			e.endPoint(end[:len(last)])
		}
	}
}

// oneElement writes an element; open says that its range has no end.
func (e *encoder) oneElement(s *elementShape, el *nft.KeyedElement, key, keyEnd string, open bool) {
	at := e.Open(unix.NFTA_LIST_ELEM)
	e.value(unix.NFTA_SET_ELEM_KEY, key)
	if keyEnd != "" {
		e.value(attrElemKeyEnd, keyEnd)
	}
	if s.keysOnly {
		e.Close(at)
		return
	}
	switch {
	case s.verdicts:
		e.verdict(el.Verdict)
	case el.Data != "":
		e.value(unix.NFTA_SET_ELEM_DATA, el.Data)
	}
	if l := el.Life; l != nil {
		e.Uint64(unix.NFTA_SET_ELEM_TIMEOUT, uint64(l.Timeout/time.Millisecond))
		if l.Expires != 0 {
			e.Uint64(unix.NFTA_SET_ELEM_EXPIRATION, uint64(l.Expires/time.Millisecond))
		}
	}
	if el.Comment != "" || open {
		e.elementUserdata(el.Comment, open)
	}
	e.Close(at)
}

// value writes raw data (struct nft_data).
func (e *encoder) value(typ uint16, data string) {
	at := e.Open(typ)
	e.Bytes(unix.NFTA_DATA_VALUE, data)
	e.Close(at)
}

// endPoint writes the first key behind a range.
func (e *encoder) endPoint(key []byte) {
	at := e.Open(unix.NFTA_LIST_ELEM)
	e.value(unix.NFTA_SET_ELEM_KEY, string(key))
	e.Uint32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	e.Close(at)
}

// firstSegment says that a set of ranges begins with a gap. nft writes it with the first elements;
// here it comes with the set.
func (e *encoder) firstSegment(i int, s *nft.Set) {
	var zero [16]byte
	e.message(i, 0, unix.NFT_MSG_NEWSETELEM, flagsCreate, func() {
		e.Name(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
		list := e.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		e.endPoint(zero[:s.KeyLen(e.family)])
		e.Close(list)
	})
}

func (e *encoder) verdict(v *nft.Verdict) {
	if v == nil {
		e.fail(errors.New("an element of a verdict map without a verdict"))
		return
	}
	at := e.Open(unix.NFTA_SET_ELEM_DATA)
	verdict := e.Open(unix.NFTA_DATA_VERDICT)
	e.Uint32(unix.NFTA_VERDICT_CODE, uint32(v.Kind))
	if v.Chain != "" {
		e.Name(unix.NFTA_VERDICT_CHAIN, v.Chain)
	}
	e.Close(verdict)
	e.Close(at)
}

// elementUserdata is the element's comment and the mark of a range without an end, which only nft
// reads.
func (e *encoder) elementUserdata(comment string, open bool) {
	comment = nft.PlainComment(comment)
	at := len(e.Buf)
	e.Head(unix.NFTA_SET_ELEM_USERDATA, 0)
	if comment != "" {
		e.Buf = append(e.Buf, byte(userdata.NFTNL_UDATA_SET_ELEM_COMMENT), byte(len(comment)+1))
		e.Buf = append(e.Buf, comment...)
		e.Buf = append(e.Buf, 0)
	}
	if open {
		e.Buf = append(e.Buf, byte(userdata.NFTNL_UDATA_SET_ELEM_FLAGS), 4)
		e.Buf = binary.NativeEndian.AppendUint32(e.Buf, userdata.NFTNL_UDATA_SET_ELEM_F_INTERVAL_OPEN)
	}
	e.Close(at)
	e.Pad()
}
