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
	o := outcome{encoding: x, batch: b}
	for !o.ended {
		n, from, err := k.socket.receive(k.buf, 0)
		switch {
		case err == unix.ENOBUFS:
			o.lost = true // earlier answers can still be received
		case err != nil:
			return o.result()
		case from == 0:
			attr.Replies(k.buf[:n], o.add)
		}
	}
	return o.result()
}

// An outcome is the sum of the answers to a batch.
type outcome struct {
	*encoding
	batch *nft.Batch
	ended bool  // the last operation was answered
	done  bool  // and acknowledged
	lost  bool  // answers did not fit into the receive buffer
	err   error // the first one
}

func (o *outcome) add(r attr.Reply) {
	index := int(int32(r.Seq - o.first)) // 0 is the begin message
	if r.Type != unix.NLMSG_ERROR || index < 0 || index > len(o.refs)+1 {
		return
	}
	o.ended = o.ended || index == len(o.refs)
	switch a := r.Ack(); {
	case a.Errno == 0:
		o.done = o.done || index == len(o.refs)
	case o.err == nil:
		o.err = o.refusal(o.batch, index-1, a)
	}
}

func (o *outcome) result() error {
	if o.err == nil && (o.lost || !o.done) {
		return ErrUnknownOutcome
	}
	return o.err
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
