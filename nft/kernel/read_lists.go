package kernel

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// manyElements is the number of elements from which on Read looks up endpoint lists by their keys. A dump
// begins its walk over the kernel's hash table anew for every 32 KiB, so its time grows with the square of
// the number of elements. See docs/decisions/020-large-maps-read-by-key.md for measurements.
const manyElements = 120_000

// keysPerRequest is how many elements of a list one request names. All answers to a request fit into a
// receive buffer of the usual size.
const keysPerRequest = 32

// frontendsOf returns the map of frontends whose endpoint lists s holds; nil if s holds none. The key of
// an endpoint is the key of its frontend and an index.
func frontendsOf(t *nft.Table, s *nft.Set) (frontends *nft.Elements) {
	n := len(s.Key) - 1
	if s.Interval || s.Key[n] != nft.FieldIndex {
		return nil
	}
	for _, held := range t.Sets { // another map may hold some of the frontends
		if held.Set.Verdicts && !held.Set.Interval && slices.Equal(held.Set.Key, s.Key[:n]) &&
			(frontends == nil || len(held.Map) > len(frontends.Map)) {
			frontends = held
		}
	}
	return frontends
}

// readLists returns the endpoints in the lists of these frontends. It does not find other elements of s.
func (k *Client) readLists(
	ctx context.Context, f nft.Family, s *nft.Set, frontends map[string]nft.Element,
) (map[string]nft.Element, error) {
	d := wire.NewElementDecoder(f, s)
	keys := make([]string, keysPerRequest)
	for frontend := range frontends {
		for first, ended := 0, false; !ended; first += len(keys) {
			for i := range keys {
				keys[i] = nft.IndexedKey(frontend, first+i)
			}
			err := k.lookup(ctx, f, s, d, keys...)
			if ended = errors.Is(err, unix.ENOENT); err != nil && !ended {
				return nil, err
			}
		}
	}
	return d.Elements(), nil
}

// lookup requests elements by their keys and gives them to d. The kernel answers with those before the
// first missing one, and then with ENOENT.
func (k *Client) lookup(ctx context.Context, f nft.Family, s *nft.Set, d *wire.ElementDecoder, keys ...string) error {
	return k.Get(ctx, unix.NFT_MSG_GETSETELEM, f, AboutElements(nft.TableName, s.Name, keys...),
		func(r attr.Reply) { d.Message(r.Attributes()) })
}
