package affinity

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// An EntryChange is an entry that has to change.
type EntryChange struct {
	Key  string
	Data string
	Now  *nft.Life // nil: the entry goes
	New  bool      // there was no entry
	Left Endpoint  // that the entry names, if it is no member; zero if the entry changes for another reason

	turn int // among those of its namespace
}

// An Endpoint is an endpoint of the group with a number.
type Endpoint struct {
	Number uint32
	Addr   netip.Addr
}

// Wrong returns the entries of an affinity map that have to change: those that name no member of their group
// go, and those of a group in newTimeout get its timeout. group returns the group with a number, and its list; zero
// ones if no Service port uses the number. stale counts the entries that name an endpoint that is no member. Clients of
// the other list of the same Service port keep their endpoints in a group that is fresh, if it has them: a traffic
// policy has changed. What is more than room goes, too: see surplus. Namespaces take turns: those with a few changes do
// not wait for one with many. This is the one place that decides which entries a map may have.
func Wrong(
	f nft.Family, held map[string]nft.Element, room int, group func(number uint32) (Group, List),
	newTimeout, fresh map[uint32]bool,
) (changes []EntryChange, stale int) {
	valid := make(map[string]map[uint32][]string) // keys of entries by namespace and group
	for key, entry := range held {
		number, client, ok := nft.SplitNumberedKey(f, key)
		endpoint, isAddr := netip.AddrFromSlice([]byte(entry.Data))
		if !ok || !isAddr || entry.Life == nil {
			continue
		}
		if other, list := group(layout.OtherList(number)); fresh[other.Number] && list.Has(endpoint) {
			key := nft.NumberedKey(f, other.Number, client)
			if _, ok := held[key]; !ok {
				life := &nft.Life{Timeout: other.Timeout, Expires: min(remaining(entry.Life), other.Timeout)}
				changes = append(changes, EntryChange{Key: key, Data: entry.Data, Now: life, New: true})
			}
		}
		c := EntryChange{Key: key, Data: entry.Data}
		switch wanted, list := group(number); {
		case !list.Has(endpoint):
			c.Left = Endpoint{number, endpoint}
			stale++
		case newTimeout[number] && entry.Life.Timeout != wanted.Timeout:
			c.Now = &nft.Life{Timeout: wanted.Timeout, Expires: min(remaining(entry.Life), wanted.Timeout)}
		default:
			if valid[wanted.Namespace] == nil {
				valid[wanted.Namespace] = make(map[uint32][]string)
			}
			valid[wanted.Namespace][number] = append(valid[wanted.Namespace][number], key)
			continue
		}
		changes = append(changes, c)
	}
	for _, key := range surplus(held, valid, room) {
		changes = append(changes, EntryChange{Key: key, Data: held[key].Data})
	}
	slices.SortFunc(changes, func(a, b EntryChange) int { return strings.Compare(a.Key, b.Key) })
	turns := make(map[string]int) // by namespace; Service ports that have gone have none
	for i := range changes {
		number, _, _ := nft.SplitNumberedKey(f, changes[i].Key)
		of, _ := group(number)
		changes[i].turn = turns[of.Namespace]
		turns[of.Namespace]++
	}
	slices.SortStableFunc(changes, func(a, b EntryChange) int { return cmp.Compare(a.turn, b.turn) })
	return changes, stale
}

// Room is how many entries of a map of a size stay. The rest is for new clients.
func Room(size uint32) int { return int(size - size/4) }

// surplus returns the keys of the entries that have to go if there is no room for all. The namespaces with the most
// entries give up theirs, and in a namespace the groups with the most: those that expire first.
func surplus(held map[string]nft.Element, keys map[string]map[uint32][]string, room int) (gone []string) {
	var namespaces []int
	for _, groups := range keys {
		namespaces = append(namespaces, total(groups))
	}
	most := share(namespaces, room)
	for _, groups := range keys {
		if total(groups) <= most {
			continue
		}
		var counts []int
		for _, list := range groups {
			counts = append(counts, len(list))
		}
		mostOfGroup := share(counts, most)
		for _, list := range groups {
			slices.SortFunc(list, func(a, b string) int {
				return cmp.Or(cmp.Compare(remaining(held[a].Life), remaining(held[b].Life)), strings.Compare(a, b))
			})
			gone = append(gone, list[:max(0, len(list)-mostOfGroup)]...)
		}
	}
	return gone
}

func total(groups map[uint32][]string) (n int) {
	for _, list := range groups {
		n += len(list)
	}
	return n
}

// remaining is after which time an entry expires.
func remaining(l *nft.Life) time.Duration { return cmp.Or(l.Expires, l.Timeout) }

// share returns the largest limit for each count so that all together fit into room.
func share(counts []int, room int) int {
	slices.Sort(counts)
	for i, n := range counts {
		if left := len(counts) - i; n > room/left {
			return room / left
		}
		room -= n
	}
	return math.MaxInt
}

// Ops returns the operations of changes in one map. Packets may have made another entry of a client since it was
// read, which must stay, and Destroy takes away what is under a key. So the entry that goes is added first: the kernel
// refuses that, and with it the whole batch, with EEXIST if the data under the key is another.
func Ops(f nft.Family, set *nft.Set, changes []EntryChange) (ops []nft.Op) {
	for _, c := range changes {
		life := c.Now
		if life == nil {
			life = &nft.Life{Timeout: fading, Expires: fading}
		}
		entry := []nft.KeyedElement{{Key: c.Key, Element: nft.Element{Data: c.Data, Life: life}}}
		ops = append(ops, nft.Op{Verb: nft.Add, Family: f, Set: set, Elements: entry})
		if c.Now == nil { // the next message: microseconds later
			ops = append(ops, nft.Op{Verb: nft.Destroy, Family: f, Set: set, Elements: entry})
		}
	}
	return ops
}

// fading is the life of an entry that is added to be removed: a tick of the slowest kernel's clock. It would matter
// only if a packet made an entry of the same client between the two operations.
const fading = 10 * time.Millisecond

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
		most = Room(set.Size)
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
