package services

import (
	"crypto/sha256"
	"encoding/base32"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/entries"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// EntriesChanged lists the numbers whose entries are to be others since Committed.
func (r *Ruleset) EntriesChanged() (list []entries.Group) {
	for _, f := range r.config.Families {
		changed := r.families[f].entries
		for _, number := range slices.Sorted(maps.Keys(changed)) {
			list = append(list, changed[number])
		}
	}
	return list
}

// AffinityMaps lists the maps of affinity entries in the tables of a family, which exist while a
// Service port has affinity. It depends on the Config alone, so that any goroutine may call it.
func (r *Ruleset) AffinityMaps(f nft.Family) []*nft.Set { return r.config.affinitySets(f) }

// IsAffinityMap reports whether a map of this name holds the entries of several Service ports.
func (r *Ruleset) IsAffinityMap(name string) bool {
	return slices.ContainsFunc(r.AffinityMaps(nft.IP), func(s *nft.Set) bool { return s.Name == name })
}

// AdoptEntries returns the operations that carry over the entries of versions that kept a map of
// its own for each Service port, from tables that were read with the entries of these maps.
func (r *Ruleset) AdoptEntries(have nft.Tables) (ops []nft.Op) {
	for _, f := range r.config.Families {
		table, family := have[f], r.families[f]
		if table == nil {
			continue
		}
		byMap := make(map[string][]entries.Change)
		for id, port := range family.ports {
			for _, g := range port.affinity.groups {
				old := table.Sets[ownMapName(id, g.group)]
				if old == nil {
					continue
				}
				into := entries.Group{Number: g.number, Members: g.members, Timeout: port.affinity.timeout}
				for key, entry := range old.Map {
					client, _ := netip.AddrFromSlice([]byte(key))
					if into.MayName(entry.Data) {
						name := layout.AffinityMap(g.number)
						byMap[name] = append(byMap[name], entries.Change{Key: nft.NumberedKey(f, g.number, client), Now: into.Renewed(entry)})
					}
				}
			}
		}
		for _, set := range r.AffinityMaps(f) {
			changes := byMap[set.Name]
			slices.SortFunc(changes, func(a, b entries.Change) int { return strings.Compare(a.Key, b.Key) })
			same := func(a, b entries.Change) bool { return a.Key == b.Key } // of IPv6 clients that became one
			ops = append(ops, entries.Ops(f, set, slices.CompactFunc(changes, same))...)
		}
	}
	return ops
}

// ownMapName names the affinity map that a Service port had to itself, for one list of endpoints and
// one of their ports, before Service ports shared them: eight letters of a hash, which make it
// unique whatever is cut off, and then text to read.
//
// Length: 8 + 1 + 63 + 1 + 63 + 1 + 63 = 200 at most, as Kubernetes names are DNS labels; with
// the longest prefix ("members-local-", 14) and suffix ("-65535", 6) 220, within the 255
// that the kernel allows (NFT_NAME_MAXLEN is 256 with the NUL).
func ownMapName(id tracker.PortID, g group) string {
	identity := id.Namespace + "/" + id.Service + ":" + id.Port + "/" + id.Protocol.String()
	sum := sha256.Sum256([]byte(identity))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
	name := hash + "-" + cut(plain(id.Namespace+"-"+id.Service+"-"+portText(id)), 191)
	return layout.AffinityPrefix + layout.LocalInfix(g.local) + name + "-" + strconv.Itoa(int(g.port))
}

func portText(id tracker.PortID) string {
	if id.Port == "" {
		return id.Protocol.String()
	}
	return id.Port
}

// plain replaces everything that an nft identifier cannot hold.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, s)
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
