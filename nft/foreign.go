package nft

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft/attr"
)

// Note takes in what a foreign change has left of our tables, so that Changes is the repair.
// It returns how many chains, sets and elements are not as they should be; a table that is
// gone counts as one. Known is false if that cannot be told from the notifications: then the
// tables have to be read back.
//
// It is for a ruleset whose changes have been committed. A change that the kernel made before
// the last commit may be noted after it: the kernel has refused that commit if the two had to
// do with each other, or has done the same as the repair will.
func (r *Ruleset) Note(change *ForeignChange) (damaged int, known bool) {
	if change.Lost {
		return 0, false
	}
	last := change.deletions()
	for i := range change.events {
		e := &change.events[i]
		family := r.families[e.family]
		switch {
		case family == nil: // IPv6 is not served
		case i < last[e.family]: // what went with the table
		case !family.tracking || !family.note(e):
			return 0, false
		}
	}
	for _, family := range r.families {
		damaged += family.damaged()
	}
	return damaged, true
}

// deletions returns where each family's table was deleted last; 0 if it was not.
func (c *ForeignChange) deletions() map[Family]int {
	last := make(map[Family]int)
	for i := range c.events {
		if c.events[i].typ == unix.NFT_MSG_DELTABLE {
			last[c.events[i].family] = i
		}
	}
	return last
}

// note follows one notification; false if it cannot be followed.
func (d *draft) note(e *event) bool {
	switch e.typ {
	case unix.NFT_MSG_DELTABLE:
		d.committed()
		d.gone = true
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		return d.noteChain(e)
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		return d.noteRule(e)
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET:
		return d.noteSet(e)
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		return d.noteElements(e)
	case unix.NFT_MSG_NEWTABLE:
		return false
	}
	return true // objects and flowtables do nothing without a rule
}

// unknownRules stand for rules that were not read. They equal none of ours.
func unknownRules() []Rule { return []Rule{{Raw{}}} }

// noteChain follows a chain that came, changed or went. Of a base chain, hook and policy
// cannot be changed in place.
func (d *draft) noteChain(e *event) bool {
	_, chain := decodeChain(e.attrs)
	wanted := d.table.Chains[chain.Name]
	switch {
	case d.gone:
		return false
	case e.typ == unix.NFT_MSG_DELCHAIN:
		d.chains[chain.Name] = nil
	case wanted != nil && !chain.Hook.equal(wanted.Hook):
		return false
	default:
		chain.Rules = unknownRules()
		d.chains[chain.Name] = chain
	}
	return true
}

// noteRule follows a rule that came or went: its chain is written anew.
func (d *draft) noteRule(e *event) bool {
	_, name, _ := decodeRule(e.attrs)
	chain, touched := d.chains[name]
	if !touched {
		chain = d.table.Chains[name]
	}
	if d.gone || chain == nil {
		return false
	}
	d.chains[name] = &Chain{Name: name, Hook: chain.Hook, Rules: unknownRules()}
	return true
}

// noteSet follows a set that came or went.
func (d *draft) noteSet(e *event) bool {
	_, set := decodeSet(d.table.Family, e.attrs)
	wanted := d.table.Sets[set.Name]
	switch {
	case d.gone:
		return false
	case e.typ == unix.NFT_MSG_DELSET:
		d.touchSet(set.Name)
		d.sets[set.Name] = nil
		for key := range d.elements[set.Name] {
			d.elements[set.Name][key] = nil
		}
	case wanted == nil, wanted.Set.Equal(set):
		d.sets[set.Name] = set
	default:
		return false
	}
	return true
}

// noteElements follows elements that came, changed or went. Those of dynamic sets belong to
// the packets, and those of a set that is not ours go with it.
func (d *draft) noteElements(e *event) bool {
	name := attributeName(e.attrs, unix.NFTA_SET_ELEM_LIST_SET)
	wanted := d.table.Sets[name]
	switch {
	case d.gone:
		return false
	case wanted == nil:
		_, touched := d.sets[name]
		return touched
	case wanted.Set.Dynamic:
		return true
	}
	touched := d.touchedIn(name)
	decoder := newElementDecoder(d.table.Family, wanted.Set)
	decoder.message(e.attrs)
	if wanted.Set.ranges() == twoPoints {
		d.notePoints(name, decoder, e.typ == unix.NFT_MSG_NEWSETELEM)
		return true
	}
	for key, element := range decoder.finish() {
		touched[key] = nil
		if e.typ == unix.NFT_MSG_NEWSETELEM {
			touched[key] = &element
		}
	}
	return true
}

// notePoints follows points that came to a set of ranges or went: each by itself changes
// where ranges begin and end.
func (d *draft) notePoints(name string, heard *elementDecoder, came bool) {
	wanted, touched := d.table.Sets[name], d.elements[name]
	now := newElementDecoder(d.table.Family, wanted.Set)
	for key, element := range d.held(name) {
		now.addRange(key, element)
	}
	for _, p := range heard.points {
		now.points = slices.DeleteFunc(now.points, func(q point) bool { return q.key == p.key && q.end == p.end })
		if came {
			now.points = append(now.points, p)
		}
	}
	for key := range wanted.Map {
		touched[key] = nil
	}
	for key := range touched {
		touched[key] = nil
	}
	for key, element := range now.finish() {
		touched[key] = &element
	}
}

// held returns what a set holds in the kernel, as far as it is known.
func (d *draft) held(name string) map[string]Element {
	held := maps.Clone(d.table.Sets[name].Map)
	for key, element := range d.elements[name] {
		delete(held, key)
		if element != nil {
			held[key] = *element
		}
	}
	return held
}

// damaged counts the touched objects that are not as they are wanted.
func (d *draft) damaged() (n int) {
	if d.gone {
		return 1
	}
	have, want := d.pending()
	for name, set := range want.Sets {
		if have.Sets[name] == nil {
			n++
			continue
		}
		n += len(missing(set.Map, have.Sets[name].Map)) + extra(have.Sets[name].Map, set.Map)
	}
	for name := range have.Sets {
		if want.Sets[name] == nil {
			n++
		}
	}
	for name, chain := range want.Chains {
		if have.Chains[name] == nil || !have.Chains[name].equalRules(d.table.Family, chain) {
			n++
		}
	}
	return n + extra(have.Chains, want.Chains)
}

// extra counts the keys that only have holds.
func extra[V any](have, want map[string]V) (n int) {
	for key := range have {
		if _, ok := want[key]; !ok {
			n++
		}
	}
	return n
}

// attributeName is the value of an attribute that is a name.
func attributeName(b []byte, typ uint16) string {
	value := attr.Reader{Value: attr.Find(b, typ)}
	return value.Name()
}
