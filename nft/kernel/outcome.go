package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// outcome collects the answers to a batch. They are all there when the batch has been sent. First
// comes an answer to the begin message, if that message or the commit as a whole failed. Answers to
// operations follow in their order. Nothing comes after the answer to the last operation. A refused
// begin message leaves that answer out.
func (k *Client) outcome(x *encoding, b *nft.Batch) error {
	var refused error // the first one
	ended := false    // there are no more answers
	done := false     // the last operation is acknowledged
	lost := false     // answers did not fit into the receive buffer
	for !ended {
		n, from, err := k.socket.receive(k.buf, 0)
		switch {
		case err == unix.ENOBUFS:
			lost = true // earlier answers can still be received
		case err != nil:
			ended = true
		case from == 0:
			attr.Replies(k.buf[:n], func(r attr.Reply) {
				index := int(int32(r.Seq - x.first)) // 0 is the begin message
				if r.Type != unix.NLMSG_ERROR || index < 0 || index > len(x.refs)+1 {
					return
				}
				ended = ended || index == len(x.refs)
				switch a := r.Ack(); {
				case a.Errno == 0:
					done = done || index == len(x.refs)
				case refused == nil:
					refused = x.refusal(b, index-1, a)
				}
			})
		}
	}
	if refused == nil && (lost || !done) {
		return ErrUnknownOutcome
	}
	return refused
}

// refusal is the error for a refused message, or for a refused begin or end of the batch.
func (x *encoding) refusal(b *nft.Batch, index int, a attr.Ack) error {
	var err error = a.Errno
	if a.Text != "" {
		err = fmt.Errorf("%w: %s", a.Errno, a.Text)
	}
	if index < 0 || index >= len(x.refs) {
		return &BatchError{Bytes: len(x.buf), Err: err}
	}
	return x.opError(b, index, a.Offset, err)
}

// opError names the operation of a refused message. It names the element too if offset, an offset
// into the message, points at one.
func (x *encoding) opError(b *nft.Batch, index, offset int, err error) error {
	ref := x.refs[index]
	if ref.op == foreignOps {
		return &ForeignError{Message: ref.element, Of: len(b.Foreign), Err: err}
	}
	op := b.Ops[ref.op]
	e := &OpError{Table: op.Family.NFT() + " " + nft.TableName, Family: op.Family, Err: err}
	switch {
	case op.Elements != nil:
		e.Set = op.Set.Name
		if i, ok := x.elementAt(ref, offset, &op); ok {
			op.Elements = op.Elements[i : i+1]
			e.Element = op.Elements[0].Key
			e.Key = op.Set.KeyText(op.Family, op.Elements[0].Key)
		}
	case op.Rules != nil:
		op.Rules = op.Rules[ref.element : ref.element+1]
	}
	e.Op, e.Attribution = op.ShortText(), attribution(&op)
	return e
}

// elementAt walks over the sent message to find the element at an offset into it. An offset of zero
// points at none.
func (x *encoding) elementAt(ref message, offset int, op *nft.Op) (i int, ok bool) {
	const body = attr.MessageHeader + attr.NetfilterHeader
	list := attr.NewReader(attr.MessageAt(x.buf, ref.offset)[body:])
	for list.Next() {
		if list.Type == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			i, ok = itemAt(list.Value, offset-body-list.At()-attr.Header)
			i += ref.element
		}
	}
	return i, ok && i < len(op.Elements)
}

// itemAt counts the elements of a list before the one at an offset into it. The second element of a
// range counts with the first.
func itemAt(list []byte, offset int) (i int, ok bool) {
	i = -1
	items := attr.NewReader(list)
	for offset >= 0 && items.Next() {
		if !isEndPoint(items.Value) {
			i++
		}
		if offset < items.End() {
			return i, i >= 0
		}
	}
	return 0, false
}
