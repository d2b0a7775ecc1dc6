package kernel

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// manyElements is from how many elements on lists are read by their keys. A dump is a walk over
// the kernel's hash table that begins anew for every 32 KiB: twice as many elements take four
// times as long. Keys are found one by one, and those of a list follow from its frontend.
// Measured, CPU time of the thread: 100,000 elements 0.20 s by a dump and 0.24 s by keys,
// 300,000 elements 1.8 s and 0.9 s.
const manyElements = 120_000

const (
	firstKeys      = 16 // how many indexes of a list are asked for at first; then ever more
	keysPerRequest = 256
	listsAtOnce    = 64 // how many lists are asked for in one system call
	ackedRequest   = unix.NLM_F_REQUEST | unix.NLM_F_ACK
)

// fillLarge reads the elements of a set that holds many. What does not belong to a frontend
// shows in their number; then, for other sets, and where the answers do not fit into the
// receive buffer, which net.core.rmem_max limits in a user namespace, it is a dump.
func (k *Client) fillLarge(ctx context.Context, t *nft.Table, set *nft.Elements, count uint32) (err error) {
	frontends := t.Sets[k.Lists[set.Set.Name]]
	if frontends == nil || set.Set.Ranges() != nft.NoRanges || set.Set.KeyLen(t.Family) != frontends.Set.KeyLen(t.Family)+4 {
		return k.fill(ctx, t.Family, set, count)
	}
	if len(frontends.Map) == 0 { // they are many themselves, and their turn has not come
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

// discard takes all answers that are there: before that, the kernel gives no others.
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

// A listRequest asks for some indexes of a list.
type listRequest struct {
	frontend   string
	first, num int
}

// readLists returns the endpoints of the frontends that t has already been read with.
// Whether there are further ones in the map, the caller must find out.
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

// request sends some requests and takes the answers. It returns the requests for what may follow
// behind those of which every index was there.
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

// next asks for what follows.
func (l listRequest) next() listRequest {
	return listRequest{frontend: l.frontend, first: l.first + l.num, num: min(4*l.num, keysPerRequest)}
}

// encode writes a message for each request. The kernel answers them in order, each with the
// elements up to the first that is missing.
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
