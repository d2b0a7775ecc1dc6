package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// outcome collects the answers to a batch. They are all there when the batch has been sent. First
// comes an answer to the begin message, if that message or the commit as a whole failed. Answers to
// operations follow in their order. Nothing comes after the answer to the last operation. A refused
// begin message leaves that answer out.
func (k *Client) outcome(x *wire.Encoding, b *nft.Batch) error {
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
				index, ok := x.Index(r.Seq)
				if r.Type != unix.NLMSG_ERROR || !ok {
					return
				}
				last := index == x.Messages()-1
				ended = ended || last
				switch a := r.Ack(); {
				case a.Errno == 0:
					done = done || last
				case refused == nil:
					refused = refusal(x, b, index, a)
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
func refusal(x *wire.Encoding, b *nft.Batch, index int, a attr.Ack) error {
	var err error = a.Errno
	if a.Text != "" {
		err = fmt.Errorf("%w: %s", a.Errno, a.Text)
	}
	if index < 0 || index >= x.Messages() {
		return &BatchError{Bytes: len(x.Buf), Err: err}
	}
	return x.OpError(b, index, a.Offset, err)
}
