package services

import "github.com/kube-nft/kube-nft/nft"

// Note takes in what a foreign change has left of our tables, so that Changes is the repair.
// It returns how many chains, sets and elements are not as they should be; a table that is
// gone counts as one. Known is false if that cannot be told from the notifications: then the
// tables have to be read back.
//
// It is for a ruleset whose changes have been committed. A change that the kernel made before
// the last commit may be noted after it: the kernel has refused that commit if the two had to
// do with each other, or has done the same as the repair will.
func (r *Ruleset) Note(change *nft.ForeignChange) (damaged int, known bool) {
	if change.Lost {
		return 0, false
	}
	last := make(map[nft.Family]int) // where each family's table was deleted last
	for i := range change.Events {
		if e := &change.Events[i]; e.Table != nil && e.Verb == nft.Delete {
			last[e.Family] = i
		}
	}
	for i := range change.Events {
		e := &change.Events[i]
		family := r.families[e.Family]
		switch {
		case family == nil: // IPv6 is not served
		case i < last[e.Family]: // what went with the table
		case !family.Note(e):
			return 0, false
		}
	}
	for _, family := range r.families {
		damaged += family.Damaged()
	}
	return damaged, true
}
