package kernel

import (
	"context"
	"errors"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// manyElements is the number of elements from which on lists are read by their keys. A dump walks
// over the kernel's hash table anew for every 32 KiB: twice as many elements take four times as
// long. Keys are found one by one; a list's keys follow from its frontend, or from a chain. Measured,
// CPU time of the thread: 100,000 elements 0.20 s by a dump and 0.24 s by keys, 300,000 elements 1.8 s
// and 0.9 s.
const manyElements = 120_000

const (
	firstKeys      = 16 // how many indexes of a list the first request names; later ones name more
	keysPerRequest = 256
	listsAtOnce    = 64 // how many lists one system call requests
	ackedRequest   = unix.NLM_F_REQUEST | unix.NLM_F_ACK
)

// fillLarge reads the elements of a large set by keys. It dumps the set instead in three cases: the
// set is no map of lists; the number of elements shows that some belong to no list; the answers do
// not fit into the receive buffer, which net.core.rmem_max limits in a user namespace.
func (k *Client) fillLarge(ctx context.Context, t *nft.Table, set *nft.Elements, count uint32) (err error) {
	keys, err := k.listKeys(ctx, t, set.Set)
	if err != nil {
		return err
	}
	if keys == nil {
		return k.fill(ctx, t.Family, set, count)
	}
	set.Map, err = k.readLists(ctx, t, set.Set, keys)
	switch {
	case errors.Is(err, unix.ENOBUFS):
		k.discard()
	case err != nil || uint32(len(set.Map)) == count:
		return err
	}
	return k.fill(ctx, t.Family, set, count)
}

// listKeys returns the keys of the lists in a map of t, whose chains are known by name and whose
// small sets have been read; nil if the set is no map of lists.
func (k *Client) listKeys(ctx context.Context, t *nft.Table, s *nft.Set) (keys []string, err error) {
	source, length := k.Lists[s.Name], s.KeyLen(t.Family)-4
	if s.Ranges() != nft.NoRanges {
		return nil, nil
	}
	if source.OfChain != nil {
		for name := range t.Chains {
			if key, ok := source.OfChain(name); ok && len(key) == length {
				keys = append(keys, key)
			}
		}
		return keys, nil
	}
	frontends := t.Sets[source.Map]
	if frontends == nil || frontends.Set.KeyLen(t.Family) != length {
		return nil, nil
	}
	if len(frontends.Map) == 0 { // a large set itself, not yet read
		if err := k.fill(ctx, t.Family, frontends, 0); err != nil {
			return nil, err
		}
	}
	return slices.Collect(maps.Keys(frontends.Map)), nil
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
	list       string // its key
	first, num int
}

// readLists returns the endpoints of the lists with these keys. It does not find further endpoints
// in the map; the caller does.
func (k *Client) readLists(ctx context.Context, t *nft.Table, s *nft.Set, lists []string) (map[string]nft.Element, error) {
	r := &listReader{kernel: k, family: t.Family, set: s, decoder: newElementDecoder(t.Family, s)}
	requests := make([]listRequest, 0, len(lists))
	for _, key := range lists {
		requests = append(requests, listRequest{list: key, num: firstKeys})
	}
	for len(requests) > 0 {
		if err := context.Cause(ctx); err != nil {
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
	return listRequest{list: l.list, first: l.first + l.num, num: min(4*l.num, keysPerRequest)}
}

// encode writes a message for each request. The kernel answers them in order, each with the
// elements up to the first missing one.
func (r *listReader) encode(requests []listRequest, seq uint32) []byte {
	var w attr.Writer
	var keys []string
	for i, request := range requests {
		keys = keys[:0]
		for index := range request.num {
			keys = append(keys, nft.IndexedKey(request.list, request.first+index))
		}
		at := w.OpenMessage(messageType|unix.NFT_MSG_GETSETELEM, ackedRequest, seq+uint32(i), r.family, 0)
		writeKeys(&w, r.set.Name, keys...)
		w.CloseMessage(at)
	}
	return w.Buf
}
