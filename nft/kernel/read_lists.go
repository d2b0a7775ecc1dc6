package kernel

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// manyElements is the number of elements from which on lists are read by their keys. A dump walks
// over the kernel's hash table anew for every 32 KiB: twice as many elements take four times as
// long. Keys are found one by one; a list's keys follow from its frontend. Measured, CPU time of
// the thread: 100,000 elements 0.20 s by a dump and 0.24 s by keys, 300,000 elements 1.8 s and 0.9
// s.
const manyElements = 120_000

const (
	firstKeys      = 16 // how many indexes of a list the first request names; later ones name more
	keysPerRequest = 256
	listsAtOnce    = 64 // how many lists one system call requests
	ackedRequest   = unix.NLM_F_REQUEST | unix.NLM_F_ACK
)

// fillLarge reads the elements of a large set by keys. It dumps the set instead in three cases: the
// set is no map of lists; the number of elements shows that some belong to no frontend; the answers
// do not fit into the receive buffer, which net.core.rmem_max limits in a user namespace.
func (k *Client) fillLarge(ctx context.Context, t *nft.Table, set *nft.Elements, count uint32) (err error) {
	frontends := t.Sets[k.Lists[set.Set.Name]]
	if frontends == nil || set.Set.Ranges() != nft.NoRanges || set.Set.KeyLen(t.Family) != frontends.Set.KeyLen(t.Family)+4 {
		return k.fill(ctx, t.Family, set, count)
	}
	if len(frontends.Map) == 0 { // a large set itself, not yet read
		if err := k.fill(ctx, t.Family, frontends, 0); err != nil {
			return err
		}
	}
	set.Map, err = k.readLists(ctx, t, set.Set, frontends.Map)
	switch {
	case errors.Is(err, unix.ENOBUFS):
		k.discard()
	case err != nil || uint32(len(set.Map)) == count:
		return err
	}
	return k.fill(ctx, t.Family, set, count)
}

// discard receives all waiting answers: before that the kernel gives no others.
func (k *Client) discard() {
	for {
		if _, _, err := k.socket.receive(k.buf, 0); err != nil && err != unix.ENOBUFS {
			return
		}
	}
}

// A listReader reads the elements of one map of endpoint lists.
type listReader struct {
	kernel  *Client
	family  nft.Family
	set     *nft.Set
	decoder *elementDecoder
}

// A listRequest names some indexes of a list.
type listRequest struct {
	frontend   string
	first, num int
}

// readLists returns the endpoints of the frontends, which the caller has read. It does not find
// further endpoints in the map; the caller does.
func (k *Client) readLists(ctx context.Context, t *nft.Table, s *nft.Set, frontends map[string]nft.Element) (map[string]nft.Element, error) {
	r := &listReader{kernel: k, family: t.Family, set: s, decoder: newElementDecoder(t.Family, s)}
	requests := make([]listRequest, 0, len(frontends))
	for key := range frontends {
		requests = append(requests, listRequest{frontend: key, num: firstKeys})
	}
	for len(requests) > 0 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n := min(len(requests), listsAtOnce)
		more, err := r.request(requests[:n])
		if err != nil {
			return nil, err
		}
		requests = append(requests[n:], more...)
	}
	return r.decoder.Elements(), nil
}

// request sends some requests and takes the answers. It returns requests for the next indexes of
// lists whose every index was there.
func (r *listReader) request(requests []listRequest) (more []listRequest, err error) {
	k, first := r.kernel, r.kernel.seq
	k.seq += uint32(len(requests))
	b := r.encode(requests, first)
	if err := k.reserve(len(b)); err != nil {
		return nil, err
	}
	if err := k.socket.send(b); err != nil {
		return nil, err
	}
	for open := len(requests); open > 0 && err == nil; {
		datagram, awaitErr := k.await(answerTimeout)
		if awaitErr != nil {
			return nil, awaitErr
		}
		attr.Replies(datagram, func(reply attr.Reply) {
			i := int(int32(reply.Seq - first))
			switch {
			case i < 0 || i >= len(requests):
			case reply.Type != unix.NLMSG_ERROR:
				r.decoder.message(reply.Attributes())
			default:
				open--
				switch errno := reply.Ack().Errno; errno {
				case 0:
					more = append(more, requests[i].next())
				case unix.ENOENT: // the list ends here
				default:
					err = errno
				}
			}
		})
	}
	return more, err
}

// next is the request for the indexes that follow.
func (l listRequest) next() listRequest {
	return listRequest{frontend: l.frontend, first: l.first + l.num, num: min(4*l.num, keysPerRequest)}
}

// encode writes a message for each request. The kernel answers them in order, each with the
// elements up to the first missing one.
func (r *listReader) encode(requests []listRequest, seq uint32) []byte {
	var w attr.Writer
	var keys []string
	for i, request := range requests {
		keys = keys[:0]
		for index := range request.num {
			keys = append(keys, nft.IndexedKey(request.frontend, request.first+index))
		}
		at := w.OpenMessage(messageType|unix.NFT_MSG_GETSETELEM, ackedRequest, seq+uint32(i), r.family, 0)
		writeKeys(&w, r.set.Name, keys...)
		w.CloseMessage(at)
	}
	return w.Buf
}
