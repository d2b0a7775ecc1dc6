package wire

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// An OpError reports the operation for which the kernel refused a batch; it unwraps to the errno.
// It also reports an operation that cannot be encoded.
type OpError struct {
	Table       string // family and name as nft prints them: "ip kube-nft"
	Op          string // the operation in nft syntax
	Attribution string // whose the operation is: the comment of the element, or "base chains"; empty if unknown
	Set         string // name of the set, if the operation is about elements
	Err         error

	Family  nft.Family // of Table
	Element string     // the key of the very element as sets hold it, if the kernel named it
}

func (e *OpError) Error() string {
	whose := ""
	if e.Attribution != "" {
		whose = " (" + e.Attribution + ")"
	}
	return fmt.Sprintf("table %s: %s%s: %v%s; nothing was changed", e.Table, e.Op, whose, e.Err, e.remedy())
}

// Unwrap returns the kernel's reason.
func (e *OpError) Unwrap() error { return e.Err }

// remedy explains EPERM. A process without the capability gets EPERM for the batch as a whole
// instead.
func (e *OpError) remedy() string {
	if errors.Is(e.Err, unix.EPERM) {
		return " (the table belongs to another program until that ends; nft list tables tells its name)"
	}
	return ""
}

// A ForeignError reports that the kernel refused a foreign message, and with it the whole batch. It
// unwraps to the errno.
type ForeignError struct {
	Message int // index into Batch.Foreign
	Of      int // its length
	Err     error
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("commit to nf_tables: message %d of %d about tables of others: %v; nothing was changed",
		e.Message+1, e.Of, e.Err)
}

// Unwrap returns the kernel's reason.
func (e *ForeignError) Unwrap() error { return e.Err }

// OpError names the operation of a refused message: an *OpError or a *ForeignError. It names the element too if offset,
// an offset into the message, points at one.
func (x *Encoding) OpError(b *nft.Batch, index, offset int, err error) error {
	ref := x.refs[index]
	if ref.op == foreignOps {
		return &ForeignError{Message: ref.element, Of: len(b.Foreign), Err: err}
	}
	op, element := b.Ops[ref.op], noElement
	switch {
	case op.Elements != nil:
		element = x.elementAt(ref, offset)
	case op.Rules != nil:
		op.Rules = op.Rules[ref.element : ref.element+1]
	}
	return newOpError(nft.TableName, op, element, err)
}

// noElement stands for the index of an element if it is not known.
const noElement = -1

// newOpError returns the error of an operation, or of one of its elements, in a table.
func newOpError(table string, op nft.Op, element int, err error) *OpError {
	e := &OpError{Table: op.Family.NFT() + " " + table, Family: op.Family, Err: err}
	if op.Elements != nil {
		e.Set = op.Set.Name
	}
	if element != noElement {
		op.Elements = op.Elements[element : element+1]
		e.Element = op.Elements[0].Key
	}
	e.Op, e.Attribution = op.ShortText(), attribution(&op)
	return e
}

// elementAt walks over the sent message to find the element at an offset into it. An offset of zero
// points at none.
func (x *Encoding) elementAt(ref message, offset int) int {
	const body = attr.MessageHeader + attr.NetfilterHeader
	list := attr.NewReader(attr.MessageAt(x.Buf, ref.offset)[body:])
	for list.Next() {
		if list.Type == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			if i := itemAt(list.Value, offset-body-list.At()-attr.Header); i != noElement {
				return ref.element + i
			}
		}
	}
	return noElement
}

// itemAt counts the elements of a list before the one at an offset into it. The second element of a
// range counts with the first.
func itemAt(list []byte, offset int) int {
	i := noElement
	items := attr.NewReader(list)
	for offset >= 0 && items.Next() {
		if attr.Uint32(attr.Find(items.Value, unix.NFTA_SET_ELEM_FLAGS))&unix.NFT_SET_ELEM_INTERVAL_END == 0 {
			i++
		}
		if offset < items.End() {
			return i
		}
	}
	return noElement
}
