package nft

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// answerTimeout bounds the wait for the next piece of an answer. The kernel gives it at once:
// should one be lost, the caller gets an error instead of waiting forever.
const answerTimeout = 30 * time.Second

// ask sends a request and reads until the kernel has answered it. When ctx ends meanwhile, the
// rest of the answer is still taken, but nobody sees it: a socket has one dump at a time.
func (k *Kernel) ask(ctx context.Context, typ, flags uint16, f Family, which func(*wire), each func(reply)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	seq := k.seq
	k.seq++
	var w wire
	at := w.openMessage(messageType|typ, unix.NLM_F_REQUEST|flags, seq, f, 0)
	which(&w)
	w.closeMessage(at)
	if err := k.socket.send(w.buf); err != nil {
		return err
	}
	for done := false; !done; {
		b, err := k.await(answerTimeout)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			each = func(reply) {}
		}
		if done, err = answer(b, seq, each); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// await returns the next datagram of the kernel. It is overwritten by the one after it.
func (k *Kernel) await(timeout time.Duration) ([]byte, error) {
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

// answer goes through one datagram; done says that it ends the answer to the request with
// that number. What was left over from another request is passed over.
func answer(b []byte, seq uint32, each func(reply)) (done bool, err error) {
	replies(b, func(r reply) {
		switch {
		case r.seq != seq:
		case r.typ == unix.NLMSG_ERROR, r.typ == unix.NLMSG_DONE:
			done = true
			if a := r.ack(); a.errno != 0 && err == nil {
				err = a.errno
			}
		default:
			each(r)
			done = done || r.flags&unix.NLM_F_MULTI == 0
		}
	})
	return done, err
}

// element asks for one element by its key, which d decodes. ENOENT says that there is none.
func (k *Kernel) element(ctx context.Context, f Family, s *Set, key string, d *elementDecoder) error {
	which := func(w *wire) { w.keys(s.Name, key) }
	return k.ask(ctx, unix.NFT_MSG_GETSETELEM, 0, f, which, func(r reply) { d.message(r.attributes()) })
}

// keys names elements of one of our sets.
func (w *wire) keys(set string, keys ...string) {
	w.name(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
	w.name(unix.NFTA_SET_ELEM_LIST_SET, set)
	list := w.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	for _, key := range keys {
		item := w.open(unix.NFTA_LIST_ELEM)
		value := w.open(unix.NFTA_SET_ELEM_KEY)
		w.bytes(unix.NFTA_DATA_VALUE, key)
		w.close(value)
		w.close(item)
	}
	w.close(list)
}
