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
	which := func(w *wire) {
		w.name(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
		w.name(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
		list := w.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		item := w.open(unix.NFTA_LIST_ELEM)
		value := w.open(unix.NFTA_SET_ELEM_KEY)
		w.bytes(unix.NFTA_DATA_VALUE, key)
		w.close(value)
		w.close(item)
		w.close(list)
	}
	d := newElementDecoder(f, s)
	err = k.ask(ctx, unix.NFT_MSG_GETSETELEM, 0, f, which, func(r reply) { d.message(r.attributes()) })
	switch {
	case errors.Is(err, unix.ENOENT):
		return element, false, nil
	case err != nil:
		return element, false, fmt.Errorf("look up an element of %s %s %s %s: %w%s", s.noun(), f, TableName, s.Name, err, accessRemedy(err))
	}
	for _, element = range d.finish() {
		return element, true, nil
	}
	return element, false, nil
}
