// Package entries knows what affinity entries are to be, which packets make: what is wrong with those
// that a map holds, and the operations that put it right. A pure package.
package entries

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-nft/kube-nft/nft"
)

// A Group says what the affinity entries under one number are to be. Packets make them, and make
// no more for an endpoint that has left; what is there of it has to be cleaned up.
type Group struct {
	Family  nft.Family
	Number  uint32
	Members []netip.Addr // the endpoints that they may name, sorted; none if nobody has the number
	Timeout time.Duration
	// Look says that there may be entries that are not as they should be.
	Look bool
	// From is the number of the group that the number's entries are to be taken over from: that of
	// the other list, when a traffic policy changes; 0 for none.
	From uint32
}

// MayName reports whether an entry may name the endpoint in its data.
func (g Group) MayName(data string) bool {
	endpoint, _ := netip.AddrFromSlice([]byte(data))
	return Holds(g.Members, endpoint)
}

// A Change replaces the entry under a key; nil stands for no entry.
type Change struct {
	Key         string
	Before, Now *nft.Element
}

// Wrong returns what is to change of the entries that an affinity map holds: those of numbers
// that nobody has and those that name no member go, those with another timeout get the right one,
// and a group that takes over the entries of another gets them. wanted says what is to be under a
// number.
func Wrong(f nft.Family, held map[string]nft.Element, wanted func(number uint32) Group, takeOver map[uint32]uint32) (changes []Change) {
	for key, entry := range held {
		number, client, ok := nft.SplitNumberedKey(f, key)
		if !ok {
			continue
		}
		group := wanted(number)
		member := group.MayName(entry.Data)
		switch {
		case entry.Life != nil && entry.Life.Timeout == fading && !member: // on its way
		case !member, entry.Life != nil && entry.Life.Twin: // packets go on with the other twin
			changes = append(changes, Change{Key: key, Before: &entry})
		case entry.Life == nil || entry.Life.Timeout != group.Timeout:
			changes = append(changes, Change{Key: key, Before: &entry, Now: group.Renewed(entry)})
		}
		into := wanted(takeOver[number])
		intoKey := nft.NumberedKey(f, into.Number, client)
		if _, known := held[intoKey]; takeOver[number] != 0 && !known && into.MayName(entry.Data) {
			changes = append(changes, Change{Key: intoKey, Now: into.Renewed(entry)})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Key, b.Key) })
	return changes
}

// Renewed carries an entry's remaining time over to the group's timeout.
func (g *Group) Renewed(entry nft.Element) *nft.Element {
	expires := g.Timeout
	if entry.Life != nil && entry.Life.Expires > 0 {
		expires = min(expires, entry.Life.Expires)
	}
	return &nft.Element{Data: entry.Data, Life: &nft.Life{Timeout: g.Timeout, Expires: expires}}
}

// Surplus returns the removal of entries of an affinity map that is nearly full, so that one
// Service port does not keep the others from having entries: down to half of its size, those that
// expire first of the numbers that have most.
func Surplus(f nft.Family, held map[string]nft.Element, size int) (changes []Change) {
	if len(held) <= size/4*3 {
		return nil
	}
	keys := make(map[uint32][]string)
	for key := range held {
		number, _, _ := nft.SplitNumberedKey(f, key)
		keys[number] = append(keys[number], key)
	}
	if len(keys) < 2 {
		return nil
	}
	counts := make([]int, 0, len(keys))
	for _, list := range keys {
		counts = append(counts, len(list))
	}
	share := fairShare(counts, size/2)
	for _, list := range keys {
		if len(list) <= share {
			continue
		}
		slices.SortFunc(list, func(a, b string) int { return cmp.Compare(Left(held[a]), Left(held[b])) })
		for _, key := range list[:len(list)-share] {
			entry := held[key]
			changes = append(changes, Change{Key: key, Before: &entry})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Key, b.Key) })
	return changes
}

// Left is how long an entry lives if packets do not refresh it.
func Left(e nft.Element) time.Duration {
	if e.Life == nil {
		return 0
	}
	return cmp.Or(e.Life.Expires, e.Life.Timeout)
}

// fairShare is what each may have of total, so that those who want less leave the rest to the
// others.
func fairShare(wanted []int, total int) int {
	slices.Sort(wanted)
	for i, n := range wanted {
		if share := total / (len(wanted) - i); n > share {
			return share
		}
		total -= n
	}
	return total
}

// Ops returns the operations of changes in one map. Entries may have expired meanwhile: that
// does not fail the batch.
//
// An entry that is to go gets a short rest of life. A kernel from 6.12 on does that in place, and
// refuses it (EEXIST) if packets have made another entry of the client since: a deletion would take
// away whatever stands under the key. See change.InPlace. One of two twins is deleted, whichever.
func Ops(f nft.Family, set *nft.Set, changes []Change) (ops []nft.Op) {
	var gone, come []nft.KeyedElement
	for _, c := range changes {
		now := c.Now
		if now == nil && c.Before.Life != nil && c.Before.Life.Twin {
			gone = append(gone, nft.KeyedElement{Key: c.Key, Element: *c.Before})
			continue
		}
		if now == nil {
			now = &nft.Element{Data: c.Before.Data, Life: &nft.Life{Timeout: fading, Expires: fading}}
		}
		come = append(come, nft.KeyedElement{Key: c.Key, Element: *now})
		if c.Before != nil { // a kernel that cannot destroy gets the entry added first
			gone = append(gone, nft.KeyedElement{Key: c.Key, Element: nft.Element{Data: c.Before.Data, Life: now.Life}})
		}
	}
	if len(gone) > 0 {
		ops = append(ops, nft.Op{Verb: nft.Destroy, Family: f, Set: set, Elements: gone})
	}
	if len(come) > 0 {
		ops = append(ops, nft.Op{Verb: nft.Add, Family: f, Set: set, Elements: come})
	}
	return ops
}

// fading is the rest of life of an entry that is to go: one tick of the slowest kernel's clock.
const fading = 10 * time.Millisecond

// Holds reports whether a sorted list has an address.
func Holds(sorted []netip.Addr, addr netip.Addr) bool {
	_, ok := slices.BinarySearchFunc(sorted, addr, netip.Addr.Compare)
	return ok
}
