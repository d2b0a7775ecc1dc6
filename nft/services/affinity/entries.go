package affinity

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// An EntryChange is an entry that has to change.
type EntryChange struct {
	Key  string
	Data string
	Now  *nft.Life // nil: the entry goes
}

// Wrong returns the entries of an affinity map that have to change: those that name no member of their group
// go, and those of a group in newTimeout get its timeout. group returns the group with a number; the zero
// Group if no Service port uses the number. stale are the endpoints, members of no group, that entries name.
//
// This is the one place that decides which entries a map may have. A limit for the entries of a namespace
// belongs here.
func Wrong(f nft.Family, held map[string]nft.Element, group func(number uint32) Group, newTimeout map[uint32]bool) (changes []EntryChange, stale map[Endpoint]bool) {
	stale = make(map[Endpoint]bool)
	for key, entry := range held {
		number, _, ok := nft.SplitNumberedKey(f, key)
		endpoint, valid := netip.AddrFromSlice([]byte(entry.Data))
		if !ok || !valid || entry.Life == nil {
			continue
		}
		c := EntryChange{Key: key, Data: entry.Data}
		switch wanted := group(number); {
		case !wanted.Has(endpoint):
			stale[Endpoint{number, endpoint}] = true
		case newTimeout[number] && entry.Life.Timeout != wanted.Timeout:
			c.Now = &nft.Life{Timeout: wanted.Timeout, Expires: min(cmp.Or(entry.Life.Expires, entry.Life.Timeout), wanted.Timeout)}
		default:
			continue
		}
		changes = append(changes, c)
	}
	slices.SortFunc(changes, func(a, b EntryChange) int { return strings.Compare(a.Key, b.Key) })
	return changes, stale
}

// Ops returns the operations of changes in one map.
func Ops(f nft.Family, set *nft.Set, changes []EntryChange) (ops []nft.Op) {
	var gone, renewed []nft.KeyedElement
	for _, c := range changes {
		if e := (nft.KeyedElement{Key: c.Key, Element: nft.Element{Data: c.Data, Life: c.Now}}); c.Now == nil {
			gone = append(gone, e)
		} else {
			renewed = append(renewed, e)
		}
	}
	if len(gone) > 0 {
		ops = append(ops, nft.Op{Verb: nft.Destroy, Family: f, Set: set, Elements: gone})
	}
	if len(renewed) > 0 {
		ops = append(ops, nft.Op{Verb: nft.Add, Family: f, Set: set, Elements: renewed})
	}
	return ops
}

// A Known is a client whose endpoint is known from another proxy.
type Known struct {
	Client, Endpoint netip.Addr
	Groups           []Group // that have the endpoint
}

// Entries returns the operations that make entries of clients, with the full timeout, and how many clients
// get one. Clients that an affinity map cannot tell apart have one entry. At most three quarters of a map are
// filled, in the order of the list.
func Entries(f nft.Family, maps []*nft.Set, clients []Known) (ops []nft.Op, made int) {
	byMap := make(map[string][]nft.KeyedElement)
	known := make(map[string]bool)
	most := 0
	for _, set := range maps {
		most = int(set.Size) / 4 * 3
	}
	for i := range clients {
		c, before := &clients[i], len(known)
		for _, g := range c.Groups {
			name, key := layout.AffinityMap(g.Number), nft.NumberedKey(f, g.Number, c.Client)
			if !known[key] && len(byMap[name]) < most {
				known[key] = true
				byMap[name] = append(byMap[name], nft.KeyedElement{Key: key, Element: nft.Element{
					Data: nft.AddrKey(c.Endpoint), Life: &nft.Life{Timeout: g.Timeout, Expires: g.Timeout},
				}})
			}
		}
		if len(known) > before {
			made++
		}
	}
	for _, set := range maps {
		if entries := byMap[set.Name]; len(entries) > 0 {
			slices.SortFunc(entries, func(a, b nft.KeyedElement) int { return strings.Compare(a.Key, b.Key) })
			ops = append(ops, nft.Op{Verb: nft.Add, Family: f, Set: set, Elements: entries})
		}
	}
	return ops, made
}
