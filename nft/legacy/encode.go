package legacy

import (
	"encoding/binary"
	"fmt"
)

// encode lays the chains out one after another and returns the rules with their offsets
// as the kernel takes them. It fails if a rule jumps to a chain that is not there.
func (b *blob) encode() (hooks hookTable, data []byte, err error) {
	offsets, hooks := b.offsets()
	for _, c := range b.chains {
		data = append(data, c.head.data...)
		for _, e := range c.entries {
			if data, err = e.append(b.layout, data, offsets); err != nil {
				return hookTable{}, nil, fmt.Errorf("chain %q: %w", c.name, err)
			}
		}
	}
	return hooks, append(data, b.end.data...), nil
}

// offsets returns where each chain's first entry will be.
func (b *blob) offsets() (map[string]int, hookTable) {
	offsets := map[string]int{}
	hooks := hookTable{valid: b.valid, entries: uint32(len(b.order()))}
	off := 0
	for _, c := range b.chains {
		offsets[c.name] = off + len(c.head.data)
		end := off + c.size()
		if c.hook >= 0 {
			hooks.entry[c.hook] = uint32(off)
			hooks.underflow[c.hook] = uint32(end - len(c.entries[len(c.entries)-1].data))
		}
		off = end
	}
	return offsets, hooks
}

// append adds the rule to data, its verdict changed to where its chain is now.
func (e entry) append(l *layout, data []byte, offsets map[string]int) ([]byte, error) {
	start := len(data)
	data = append(data, e.data...)
	verdict := len(data)
	if e.jump != "" {
		off, ok := offsets[e.jump]
		if !ok {
			return nil, fmt.Errorf("a rule jumps to %q, which is gone", e.jump)
		}
		verdict = off
	}
	if e.jump != "" || e.through {
		at, _ := e.verdict(l)
		binary.NativeEndian.PutUint32(data[start+at:], uint32(verdict))
	}
	return data, nil
}

// order returns, for each entry of the encoded blob, its index in the blob it was decoded
// from: the key to its counters.
func (b *blob) order() []int {
	var order []int
	for _, c := range b.chains {
		if c.hook < 0 {
			order = append(order, c.head.index)
		}
		for _, e := range c.entries {
			order = append(order, e.index)
		}
	}
	return append(order, b.end.index)
}
