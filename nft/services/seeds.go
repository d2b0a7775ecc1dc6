package services

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/entries"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Seed is an affinity entry that another proxy made: the client's connections to the Service port
// that has the frontend go to the endpoint, for the time that is left.
type Seed struct {
	Frontend tracker.Frontend
	Client   netip.Addr
	Endpoint netip.AddrPort
	Left     time.Duration
}

// SeedEntries returns the operations that make entries of seeds, and how many seeds they are of. A
// seed counts if the frontend's Service port has session affinity and the endpoint. Entries that are
// there stay: have holds tables that were read with theirs. No more than three quarters of a map are
// filled, with the entries that expire last; see SurplusEntries.
func (r *Ruleset) SeedEntries(seeds []Seed, have nft.Tables) (ops []nft.Op, used int) {
	for _, f := range r.config.Families {
		family := r.families[f]
		byMap := make(map[string]map[string]nft.Element)
		whose := make(map[string]map[string]int) // the seed of an entry
		for i := range seeds {
			seed := &seeds[i]
			for _, group := range family.groupsOf(seed) {
				name, key := layout.AffinityMap(group.Number), nft.NumberedKey(f, group.Number, seed.Client)
				if have[f] != nil && have[f].Sets[name] != nil {
					if _, known := have[f].Sets[name].Map[key]; known {
						continue
					}
				}
				if byMap[name] == nil {
					byMap[name], whose[name] = make(map[string]nft.Element), make(map[string]int)
				}
				entry := group.Renewed(nft.Element{Data: nft.AddrKey(seed.Endpoint.Addr()), Life: &nft.Life{Expires: seed.Left}})
				other, taken := byMap[name][key]
				if !taken || entries.Left(other) < entries.Left(*entry) { // of IPv6 clients that become one, the later one
					byMap[name][key], whose[name][key] = *entry, i
				}
			}
		}
		kept := make(map[int]bool)
		for _, set := range r.AffinityMaps(f) {
			made := byMap[set.Name]
			for _, surplus := range entries.Surplus(f, made, int(set.Size)) {
				delete(made, surplus.Key)
			}
			changes := make([]entries.Change, 0, len(made))
			for key, entry := range made {
				changes = append(changes, entries.Change{Key: key, Now: &entry})
			}
			slices.SortFunc(changes, func(a, b entries.Change) int {
				return cmp.Or(cmp.Compare(entries.Left(*b.Now), entries.Left(*a.Now)), strings.Compare(a.Key, b.Key))
			})
			changes = changes[:min(len(changes), int(set.Size)/4*3)]
			slices.SortFunc(changes, func(a, b entries.Change) int { return strings.Compare(a.Key, b.Key) })
			ops = append(ops, entries.Ops(f, set, changes)...)
			for _, change := range changes {
				kept[whose[set.Name][change.Key]] = true
			}
		}
		used += len(kept)
	}
	return ops, used
}

// groupsOf returns the groups whose entries may be what a seed says: the cluster-wide list and the
// local one have an entry each.
func (r *familyRules) groupsOf(seed *Seed) (groups []entries.Group) {
	state := r.frontends[seed.Frontend]
	if state == nil || state.claims.first() == nil || seed.Left <= 0 || seed.Client.Is4() != (r.Table.Family == nft.IP) {
		return nil
	}
	a := &state.claims.first().port.affinity
	for _, local := range []bool{false, true} {
		g := a.groups.find(group{local, seed.Endpoint.Port()})
		if entries.Holds(g.members, seed.Endpoint.Addr()) {
			groups = append(groups, entries.Group{Family: r.Table.Family, Number: g.number, Members: g.members, Timeout: a.timeout})
		}
	}
	return groups
}
