package kernel

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// answerTimeout bounds the wait for the next piece of an answer. The kernel sends it at once. If a
// piece is lost, the caller gets an error instead of waiting forever.
const answerTimeout = 30 * time.Second

// request sends a request and reads until the kernel has answered it. When ctx ends meanwhile,
// request still receives the rest of the answer but drops it: a socket has one dump at a time.
func (k *Client) request(ctx context.Context, typ, flags uint16, f nft.Family, which func(*attr.Writer),
	each func(attr.Reply)) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	seq := k.seq
	k.seq++
	var w attr.Writer
	at := w.OpenMessage(wire.MessageType|typ, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags, seq, f, 0)
	which(&w)
	w.CloseMessage(at)
	if err := k.socket.send(w.Buf); err != nil {
		return err
	}
	for done := false; !done; {
		b, err := k.await(answerTimeout)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			each = func(attr.Reply) {}
		}
		if done, err = answer(b, seq, each); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// await returns the next datagram from the kernel. The next call overwrites it.
func (k *Client) await(timeout time.Duration) ([]byte, error) {
	for {
		n, from, err := k.socket.receive(k.buf, timeout)
		switch {
		case err == unix.EAGAIN:
			return nil, fmt.Errorf("nf_tables has not answered for %v: %w", timeout, unix.ETIMEDOUT)
		case err != nil:
			return nil, err
		case from == 0:
			return k.buf[:n], nil
		}
	}
}

// answer goes through one datagram. done says that it ends the answer to the request with number
// seq. answer passes over what is left over from another request.
func answer(b []byte, seq uint32, each func(attr.Reply)) (done bool, err error) {
	attr.Replies(b, func(r attr.Reply) {
		switch {
		case r.Seq != seq:
		case r.Type == unix.NLMSG_ERROR, r.Type == unix.NLMSG_DONE:
			done = true
			if a := r.Ack(); a.Errno != 0 && err == nil {
				err = a.Errno
			}
		default:
			each(r)
		}
	})
	return done, err
}

// About says what a request is about: everything; the table of the first name; the set or chain of the second name, or
// what that holds. An empty name is none. In each kind of request attribute 1 is the name of a table, and attribute 2
// that of a set or chain (NFTA_SET_NAME and so on).
func About(names ...string) func(*attr.Writer) {
	return func(w *attr.Writer) {
		for i, name := range names {
			if name != "" {
				w.Name(uint16(i+1), name)
			}
		}
	}
}

// AboutElements says that a request is about elements of a set, by their keys.
func AboutElements(table, set string, keys ...string) func(*attr.Writer) {
	return func(w *attr.Writer) {
		About(table, set)(w)
		list := w.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for _, key := range keys {
			item := w.Open(unix.NFTA_LIST_ELEM)
			value := w.Open(unix.NFTA_SET_ELEM_KEY)
			w.Bytes(unix.NFTA_DATA_VALUE, key)
			w.Close(value)
			w.Close(item)
		}
		w.Close(list)
	}
}
