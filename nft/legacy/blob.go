package legacy

import (
	"encoding/binary"
	"fmt"
)

// HookNames are the base chains of a table, indexed by hook number, NF_INET_*.
var HookNames = [numHooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// numHooks is NF_INET_NUMHOOKS.
const numHooks = 5

// A hookTable is the part of a table's description that changes with its rules, as it stands in struct ipt_getinfo.
type hookTable struct {
	valid     uint32           // bit h: the table has a base chain at hook h
	entry     [numHooks]uint32 // where it begins, in bytes
	underflow [numHooks]uint32 // where its policy is
	entries   uint32           // the number of rules
}

// A blob is the whole of a table, with its rules divided into chains. encode returns the bytes that
// decodeBlob read unchanged.
type blob struct {
	layout *layout
	valid  uint32
	chains []blobChain
	end    entry // an ERROR target, which closes every table
}

// A blobChain is a chain in the order of the blob.
type blobChain struct {
	name    string
	hook    int     // of a base chain; -1
	head    entry   // of any other chain: an ERROR target with its name
	entries []entry // the last is the policy, or the return at the end
}

// rules returns the entries without the last, which iptables does not show.
func (c *blobChain) rules() []entry { return c.entries[:len(c.entries)-1] }

// decodeBlob divides the rules of a table into chains. It refuses what it could not write back:
// iptables programs have never written other forms.
func decodeBlob(l *layout, hooks hookTable, data []byte) (*blob, error) {
	var entries []entry
	starts := map[int]int{} // the number of each entry by its offset
	for off := 0; off < len(data); off += len(entries[len(entries)-1].data) {
		e, err := cutEntry(l, data[off:])
		if err != nil {
			return nil, fmt.Errorf("at byte %d: %w", off, err)
		}
		e.index = len(entries)
		starts[off] = e.index
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("no rules, not even a policy")
	}
	if int(hooks.entries) != len(entries) {
		return nil, fmt.Errorf("%d rules instead of %d", len(entries), hooks.entries)
	}
	b := &blob{layout: l, valid: hooks.valid, end: entries[len(entries)-1]}
	if b.end.targetName(l) != "ERROR" {
		return nil, fmt.Errorf("the closing rule is missing")
	}
	offsets, err := b.cutChains(hooks, entries[:len(entries)-1])
	if err != nil {
		return nil, err
	}
	return b, b.resolve(starts, offsets)
}

// cutChains divides entries into chains. It returns the chains by the offset of their first entry,
// which is the value of a jump.
func (b *blob) cutChains(hooks hookTable, entries []entry) (map[int]string, error) {
	offsets := map[int]string{}
	off := 0
	for _, e := range entries {
		begun, err := b.begin(hooks, off, e)
		if err != nil {
			return nil, err
		}
		off += len(e.data)
		c := &b.chains[len(b.chains)-1]
		if begun && c.hook < 0 {
			offsets[off] = c.name
			continue
		}
		if begun {
			offsets[off-len(e.data)] = c.name
		}
		c.entries = append(c.entries, e)
	}
	return offsets, b.check(hooks)
}

// begin starts a new chain if one begins with the entry at off.
func (b *blob) begin(hooks hookTable, off int, e entry) (begun bool, err error) {
	for h := range numHooks {
		if hooks.valid&(1<<h) == 0 || int(hooks.entry[h]) != off {
			continue
		}
		if begun {
			return false, fmt.Errorf("two base chains begin at byte %d", off)
		}
		b.chains = append(b.chains, blobChain{name: HookNames[h], hook: h})
		begun = true
	}
	if e.targetName(b.layout) == "ERROR" && !begun {
		name := text(e.data[e.field(b.layout.target)+extensionHeader:], errorName)
		b.chains = append(b.chains, blobChain{name: name, hook: -1, head: e})
		begun = true
	}
	if len(b.chains) == 0 {
		return false, fmt.Errorf("the rule at byte %d is in no chain", off)
	}
	return begun, nil
}

// check requires unique names, a last entry in every chain, and each policy where the kernel says.
func (b *blob) check(hooks hookTable) error {
	seen := map[string]bool{}
	off, base := 0, uint32(0)
	for _, c := range b.chains {
		if seen[c.name] {
			return fmt.Errorf("two chains are named %q", c.name)
		}
		seen[c.name] = true
		if len(c.entries) == 0 {
			return fmt.Errorf("chain %q has no end", c.name)
		}
		off += c.size()
		last := c.entries[len(c.entries)-1]
		if c.hook < 0 {
			continue
		}
		base |= 1 << c.hook
		if int(hooks.underflow[c.hook]) != off-len(last.data) {
			return fmt.Errorf("the policy of %s is not at its end", c.name)
		}
	}
	if base != hooks.valid {
		return fmt.Errorf("base chains at hooks %#x instead of %#x", base, hooks.valid)
	}
	return nil
}

// size is the length of the chain in bytes.
func (c *blobChain) size() int {
	n := len(c.head.data)
	for _, e := range c.entries {
		n += len(e.data)
	}
	return n
}

// resolve turns the offsets that verdicts hold into chains.
func (b *blob) resolve(starts map[int]int, chains map[int]string) error {
	for i := range b.chains {
		c := &b.chains[i]
		for j := range c.entries {
			e := &c.entries[j]
			at, ok := e.verdict(b.layout)
			if !ok {
				continue
			}
			verdict := int(int32(binary.NativeEndian.Uint32(e.data[at:])))
			if verdict < 0 {
				continue
			}
			if index, ok := starts[verdict]; ok && index == e.index+1 {
				e.through = true
			} else if e.jump, ok = chains[verdict]; !ok {
				return fmt.Errorf("chain %q rule %d: a jump to byte %d, where no chain begins", c.name, j+1, verdict)
			}
		}
		if last := c.entries[len(c.entries)-1]; last.jump != "" || last.through {
			return fmt.Errorf("chain %q runs into the next", c.name)
		}
	}
	return nil
}

// ruleset returns the chains and rules that the plan of a removal needs.
func (b *blob) ruleset(table string) ruleset {
	rs := ruleset{table: table}
	for _, c := range b.chains {
		out := chain{name: c.name, base: c.hook >= 0}
		for _, e := range c.rules() {
			out.rules = append(out.rules, e.summary(b.layout))
		}
		rs.chains = append(rs.chains, out)
	}
	return rs
}

// without returns the blob that remains after a removal. It shares its entries with b.
func (b *blob) without(r removal) *blob {
	rest := &blob{layout: b.layout, valid: b.valid, end: b.end}
	for _, c := range b.chains {
		f := r.actions[c.name]
		if f == deleteChain {
			continue
		}
		kept := c
		kept.entries = nil
		gone := r.deletes(c.name)
		for i, e := range c.rules() {
			if f == keepChain && !gone[i] {
				kept.entries = append(kept.entries, e)
			}
		}
		kept.entries = append(kept.entries, c.entries[len(c.entries)-1])
		rest.chains = append(rest.chains, kept)
	}
	return rest
}

// encode puts the chains one after another and returns the rules with their offsets as the kernel
// takes them. It fails if a rule jumps to a missing chain.
func (b *blob) encode() (hooks hookTable, data []byte, err error) {
	hooks = hookTable{valid: b.valid, entries: uint32(len(b.order()))}
	offsets := map[string]int{} // where each chain's first entry will be
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
	for _, c := range b.chains {
		data = append(data, c.head.data...)
		for _, e := range c.entries {
			start := len(data)
			data = append(data, e.data...)
			verdict, known := len(data), true // without a target: the next rule
			if e.jump != "" {
				verdict, known = offsets[e.jump]
			}
			if !known {
				return hookTable{}, nil, fmt.Errorf("chain %q: a rule jumps to %q, which is gone", c.name, e.jump)
			}
			if e.jump != "" || e.through {
				at, _ := e.verdict(b.layout)
				binary.NativeEndian.PutUint32(data[start+at:], uint32(verdict))
			}
		}
	}
	return hooks, append(data, b.end.data...), nil
}

// order returns, for each entry of the encoded blob, its index in the decoded blob. Counters follow
// that index.
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
