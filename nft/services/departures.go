package services

import (
	"net/netip"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/entries"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// Departures are endpoints that have left a group while affinity entries may name them, and packets
// that are under way may still make such an entry. A connection to one of them makes no entry. If
// the entries stand in a large map, which takes a while to look through, it is dropped: the client's
// next packet chooses anew as soon as the entry is gone. Settle ends departures whose entries are gone.
type departures struct {
	commits uint64 // how many have been
	list    map[departure]departed
	dropped map[netip.Addr]int // in how many departures an address is that connections to are dropped
}

// A departure is an endpoint that has left the group with a number.
type departure struct {
	number   uint32
	endpoint netip.Addr
}

type departed struct {
	commit uint64 // which one brought it, or brings it
	drop   bool
}

func newDepartures() departures {
	return departures{list: make(map[departure]departed), dropped: make(map[netip.Addr]int)}
}

// noteDepartures finds the endpoints that leave with the change from have to want, and those that come
// back. Where there is one port no rule asks for it, so that an endpoint that leaves a group
// leaves those that have another list or port, too.
func (r *familyRules) noteDepartures(have, want *affinity) {
	onePort := want.groups.onePort()
	for _, before := range have.groups {
		compareSorted(before.members, want.groups.find(before.group).members, netip.Addr.Compare, func(addr netip.Addr) {
			r.depart(departure{before.number, addr}, r.departures.commits+1, false)
			if !onePort {
				return
			}
			for _, other := range want.groups {
				if other.group != before.group && !entries.Holds(other.members, addr) {
					r.depart(departure{other.number, addr}, r.departures.commits+1, false)
				}
			}
		}, func(netip.Addr) {})
	}
	if len(r.departures.list) == 0 {
		return
	}
	for _, now := range want.groups {
		compareSorted(have.groups.find(now.group).members, now.members, netip.Addr.Compare,
			func(netip.Addr) {}, func(addr netip.Addr) { r.endDeparture(departure{now.number, addr}) })
	}
}

// adoptDepartures takes over what the kernel held at start.
func (r *familyRules) adoptDepartures() {
	if r.adopted == nil || r.adopted.Sets[layout.DepartedSet] == nil || r.adopted.Sets[layout.DroppedSet] == nil {
		return
	}
	dropped := r.adopted.Sets[layout.DroppedSet].Map
	for key := range r.adopted.Sets[layout.DepartedSet].Map {
		number, ok := layout.NumberIn(r.Table.Family, layout.DepartedSet, key)
		addr, valid := netip.AddrFromSlice([]byte(key[min(4, len(key)):]))
		if ok && valid {
			_, drop := dropped[nft.AddrKey(addr)]
			r.depart(departure{number, addr}, 0, drop)
		}
	}
}

func (r *familyRules) depart(d departure, commit uint64, drop bool) {
	have, known := r.departures.list[d]
	if !known {
		r.Put(layout.DepartedSet, layout.MemberKey(d.number, d.endpoint), nft.Element{})
	}
	if drop && !have.drop {
		if r.departures.dropped[d.endpoint]++; r.departures.dropped[d.endpoint] == 1 {
			r.Put(layout.DroppedSet, nft.AddrKey(d.endpoint), nft.Element{})
		}
	}
	r.departures.list[d] = departed{commit: commit, drop: drop || have.drop}
}

func (r *familyRules) endDeparture(d departure) {
	have, known := r.departures.list[d]
	if !known {
		return
	}
	delete(r.departures.list, d)
	r.Remove(layout.DepartedSet, layout.MemberKey(d.number, d.endpoint))
	if !have.drop {
		return
	}
	if r.departures.dropped[d.endpoint]--; r.departures.dropped[d.endpoint] == 0 {
		delete(r.departures.dropped, d.endpoint)
		r.Remove(layout.DroppedSet, nft.AddrKey(d.endpoint))
	}
}

// Departing returns operations that put the endpoints that leave with the next commit into the set of those that have
// left. They may be committed ahead of it: from then on no connection makes an entry that names one.
func (r *Ruleset) Departing() (ops []nft.Op) {
	for _, f := range r.config.Families {
		family := r.families[f]
		var leaving []nft.KeyedElement
		for d, at := range family.departures.list {
			if at.commit > family.departures.commits {
				leaving = append(leaving, nft.KeyedElement{Key: layout.MemberKey(d.number, d.endpoint)})
			}
		}
		if len(leaving) > 0 {
			set := family.Table.Sets[layout.DepartedSet].Set
			ops = append(ops, nft.Op{Verb: nft.Add, Family: f, Set: set, Elements: change.SortElements(leaving)})
		}
	}
	return ops
}

// DropDeparted makes the tables drop connections that follow entries of a map to endpoints that leave
// with the next commit.
func (r *Ruleset) DropDeparted(f nft.Family, affinityMap string) {
	family := r.families[f]
	for d, at := range family.departures.list {
		if at.commit > family.departures.commits && layout.AffinityMap(d.number) == affinityMap {
			family.depart(d, at.commit, true)
		}
	}
}

// Commits is how many commits Committed has been told of.
func (r *Ruleset) Commits() uint64 {
	for _, family := range r.families {
		return family.departures.commits
	}
	return 0
}

// Settle ends the departures that came with a commit or before, and whose entries stood in a map: they
// are gone, and so are packets that may have followed one.
func (r *Ruleset) Settle(f nft.Family, affinityMap string, commit uint64) {
	family := r.families[f]
	if family == nil { // which the kernel cannot do
		return
	}
	for d, at := range family.departures.list {
		if at.commit <= commit && layout.AffinityMap(d.number) == affinityMap {
			family.endDeparture(d)
		}
	}
}

// StrayEntries says that entries under a number name an endpoint that is no member, and reports whether
// that is news: the endpoint left when nobody looked. Until Settle no connection makes such an entry,
// and those that follow one are dropped.
func (r *Ruleset) StrayEntries(f nft.Family, number uint32, endpoint netip.Addr) (fresh bool) {
	family, d := r.families[f], departure{number, endpoint}
	_, known := family.departures.list[d]
	if entries.Holds(family.entries[number].Members, endpoint) { // from the next commit on
		return false
	}
	if !known {
		family.depart(d, family.departures.commits+1, true)
	}
	return !known
}
