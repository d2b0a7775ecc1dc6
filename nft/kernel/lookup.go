package kernel

import (
	"context"
	"errors"
	"fmt"

	"github.com/kube-nft/kube-nft/nft"
	"golang.org/x/sys/unix"
)

// Lookup asks the kernel for one element by its key, which finds it the way a packet does:
// by the structure that a dump does not use. Ok is false if there is none. The key of a set
// of ranges may be any key inside one.
func (k *Client) Lookup(ctx context.Context, f nft.Family, s *nft.Set, key string) (element nft.Element, ok bool, err error) {
	d := newElementDecoder(f, s)
	err = k.element(ctx, f, s, key, d)
	switch {
	case errors.Is(err, unix.ENOENT):
		return element, false, nil
	case err != nil:
		return element, false, fmt.Errorf("look up an element of %s %s %s %s: %w%s", s.Noun(), f.NFT(), nft.TableName, s.Name, err, accessRemedy(err))
	}
	for _, element = range d.Elements() {
		return element, true, nil
	}
	return element, false, nil
}
