package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Lookup asks the kernel for one element by its key, which finds it the way a packet does:
// by the structure that a dump does not use. Ok is false if there is none. The key of a set
// of ranges may be any key inside one.
func (k *Kernel) Lookup(ctx context.Context, f Family, s *Set, key string) (element Element, ok bool, err error) {
	d := newElementDecoder(f, s)
	err = k.element(ctx, f, s, key, d)
	switch {
	case errors.Is(err, unix.ENOENT):
		return element, false, nil
	case err != nil:
		return element, false, fmt.Errorf("look up an element of %s %s %s %s: %w%s", s.noun(), f.NFT(), TableName, s.Name, err, accessRemedy(err))
	}
	for _, element = range d.Elements() {
		return element, true, nil
	}
	return element, false, nil
}
