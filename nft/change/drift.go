package change

import (
	"maps"

	"github.com/kube-nft/kube-nft/nft"
)

// A ForeignChange is what a commit that is not ours did to our tables.
type ForeignChange struct {
	Generation uint32
	// PID and Program name the thread that committed; zero if not known.
	PID     uint32
	Program string
	// Lost says that notifications were lost, or were too many to look at: it is unknown what has
	// changed.
	Lost   bool
	Events []Event
}

// Elsewhere reports whether the commit left our tables alone.
func (c *ForeignChange) Elsewhere() bool { return !c.Lost && len(c.Events) == 0 }

// An Event is what one notification says about an object of one of our tables. Op has the shape of
// the operation that another program did; its Verb is Add for a change too. For objects that are no
// table, chain, rule, set or element, Op holds the family alone.
type Event struct {
	nft.Op
	// Listed holds the elements that came, changed or went, of a Set of which only the name is
	// known; nil if the event is about something else.
	Listed []ListedElement
}

// Record follows one notification. It returns false if it cannot follow it: then the table is to be read.
func (j *Journal) Record(e *Event) bool {
	switch {
	case !j.tracking, j.backlog != nil:
		return false
	case e.Table != nil && e.Verb == nft.Delete:
		j.Committed()
		j.gone = true
		return true
	case e.Chain == nil && e.Set == nil && e.Table == nil: // an object of a kind that is passed over
		return true
	case e.Table != nil, j.gone:
		return false
	case e.Listed != nil:
		return j.recordElements(e)
	case e.Rules != nil:
		return j.recordRule(e)
	case e.Chain != nil:
		return j.recordChain(e)
	}
	return j.recordSet(e)
}

// unknownRules stands for rules that were not read. They equal none of ours.
func unknownRules() []nft.Rule { return []nft.Rule{{nft.Raw{}}} }

// recordChain follows a chain that came, changed or went. The hook and the policy of a base chain
// cannot change in place.
func (j *Journal) recordChain(e *Event) bool {
	chain := e.Chain
	wanted := j.Table.Chains[chain.Name]
	switch {
	case e.Verb == nft.Delete:
		j.chains[chain.Name] = nil
	case wanted != nil && !chain.Hook.Equal(wanted.Hook):
		return false
	default:
		j.chains[chain.Name] = &nft.Chain{Name: chain.Name, Hook: chain.Hook, Rules: unknownRules()}
	}
	return true
}

// recordRule follows a rule that came or went: the next batch writes its chain anew.
func (j *Journal) recordRule(e *Event) bool {
	name := e.Chain.Name
	chain, touched := j.chains[name]
	if !touched {
		chain = j.Table.Chains[name]
	}
	if chain == nil {
		return false
	}
	j.chains[name] = &nft.Chain{Name: name, Hook: chain.Hook, Rules: unknownRules()}
	return true
}

// recordSet follows a set that came or went.
func (j *Journal) recordSet(e *Event) bool {
	set := e.Set
	wanted := j.Table.Sets[set.Name]
	switch {
	case e.Verb == nft.Delete:
		j.sets[set.Name] = nil
		touched := j.touchedIn(set.Name)
		for key := range touched {
			touched[key] = nil
		}
		for key := range j.Table.Elements(set.Name) {
			touched[key] = nil
		}
	case wanted == nil, wanted.Set.Equal(set):
		j.sets[set.Name] = &nft.Elements{Set: set}
	default:
		return false
	}
	return true
}

// recordElements follows elements that came, changed or went. It passes over dynamic sets, whose
// elements belong to the packets, and foreign sets, which go with their elements.
func (j *Journal) recordElements(e *Event) bool {
	name := e.Set.Name
	wanted := j.Table.Sets[name]
	switch {
	case wanted == nil:
		_, touched := j.sets[name]
		return touched
	case wanted.Set.Dynamic:
		return true
	}
	touched := j.touchedIn(name)
	heard := NewListing(j.Table.Family, wanted.Set)
	for i := range e.Listed {
		heard.Add(&e.Listed[i])
	}
	if wanted.Set.Ranges() == nft.TwoPoints {
		j.recordReferences(name, heard, e.Verb == nft.Add)
		return true
	}
	for key, element := range heard.Elements() {
		touched[key] = nil
		if e.Verb == nft.Add {
			touched[key] = &element
		}
	}
	return true
}

// recordReferences follows points that came to a set of ranges or left it. Each point alone changes where
// ranges begin and end.
func (j *Journal) recordReferences(name string, heard *Listing, came bool) {
	wanted, touched := j.Table.Sets[name], j.elements[name]
	now := NewListing(j.Table.Family, wanted.Set)
	for key, element := range j.held(name) {
		now.addRange(key, element)
	}
	now.changePoints(heard, came)
	for key := range wanted.Map {
		touched[key] = nil
	}
	for key := range touched {
		touched[key] = nil
	}
	for key, element := range now.Elements() {
		touched[key] = &element
	}
}

// held returns what a set holds in the kernel, as far as the journal knows.
func (j *Journal) held(name string) map[string]nft.Element {
	held := maps.Clone(j.Table.Sets[name].Map)
	for key, element := range j.elements[name] {
		delete(held, key)
		if element != nil {
			held[key] = *element
		}
	}
	return held
}

// Damaged counts the touched objects that differ from the wanted ones.
func (j *Journal) Damaged() (n int) {
	if j.gone {
		return 1
	}
	have, want := j.pending()
	n = extra(want.Sets, have.Sets) + extra(have.Sets, want.Sets)
	for name, touched := range j.elements {
		set := j.Table.Sets[name]
		if set == nil || want.Sets[name] != nil && have.Sets[name] == nil { // the set counts, and not what it holds
			continue
		}
		for key, before := range touched {
			if now, present := set.Map[key]; !same(before, now, present) {
				n++
			}
		}
	}
	for name, chain := range want.Chains {
		if have.Chains[name] == nil || !have.Chains[name].EqualRules(j.Table.Family, chain) {
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
