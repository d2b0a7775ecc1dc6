package layout

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
)

// Units says what belongs together in a table that becomes another one: the elements of a frontend, those of all
// frontends of a Service port with session affinity, its members and its chains, and those under a number that a chain
// holds.
type Units struct {
	have, want *nft.Table
	members    map[uint32]uint32   // the number of a Service port's affinity, by that of its members
	listBefore map[uint32]uint32   // the number of the shared list that a port chooses from, by that of its affinity
	list       map[uint32]uint32   // listBefore, as wanted
	joined     map[uint32][]uint32 // the affinities that are one unit, by the number of each
}

// NewUnits returns the units of a table that is in the kernel and becomes the wanted one.
func NewUnits(have, want *nft.Table) Units {
	u := Units{have, want, make(map[uint32]uint32), sharedLists(have), sharedLists(want), make(map[uint32][]uint32)}
	for name, chain := range want.Chains {
		number, ok := affinityOfChain(name)
		if !ok {
			continue
		}
		for _, rule := range chain.Rules {
			for _, stmt := range rule {
				if in, ok := stmt.(nft.InSet); ok {
					n, _ := in.Key[0].Constant()
					u.members[n] = number
				}
			}
		}
	}
	if have != nil {
		u.joinPassed(ServicesMap)
		u.joinPassed(NodePortsMap)
	}
	return u
}

// sharedLists returns the number of the shared list that a Service port chooses from, by that of its affinity.
func sharedLists(table *nft.Table) map[uint32]uint32 {
	lists := make(map[uint32]uint32)
	if table == nil {
		return lists
	}
	for name, chain := range table.Chains {
		p, _ := PolicyOfChain(name)
		if p.Affinity == 0 {
			continue
		}
		for _, rule := range chain.Rules {
			for _, stmt := range rule {
				v, _ := stmt.(nft.Verdict)
				if list, _, shared := ListOfChain(v.Chain); shared {
					lists[p.Affinity] = list
				}
			}
		}
	}
	return lists
}

// joinPassed makes two Service ports with session affinity one unit if a frontend passes from one to the other: its
// endpoints are the members of neither before it passes, or of neither afterwards, unless both change with it.
func (u Units) joinPassed(verdicts string) {
	for key, want := range u.want.Elements(verdicts) {
		before := u.have.Elements(verdicts)[key].Verdict
		if before == nil || want.Verdict == nil || *before == *want.Verdict { // as nearly always
			continue
		}
		from, to := affinityOf(before), affinityOf(want.Verdict)
		if from == 0 || to == 0 || slices.Contains(u.unitOf(from), to) {
			continue
		}
		if ports := slices.Concat(u.unitOf(from), u.unitOf(to)); len(ports) <= maxJoined {
			for _, number := range ports {
				u.joined[number] = ports
			}
		}
	}
}

// maxJoined bounds how many Service ports are one unit, however many pass their addresses on.
const maxJoined = 8

// unitOf returns the affinities that are one unit with that of a number.
func (u Units) unitOf(number uint32) []uint32 {
	if ports := u.joined[number]; ports != nil {
		return ports
	}
	return []uint32{number}
}

// affinityOf returns the number of the affinity of the Service port that a verdict leads to; 0 if it has none.
func affinityOf(v *nft.Verdict) uint32 {
	if v != nil {
		if p, ok := PolicyOf(*v); ok {
			return p.Affinity
		}
	}
	return 0
}

// OfElement returns the unit of an element.
func (u Units) OfElement(set, key string) change.Unit {
	lists, isLists := endpointMaps[set]
	switch {
	case set == ClusterIPsSet:
		return change.Unit{Refuses: true}
	case set == AffinityFrontendsMap:
		return u.ofUpdate(set, ServicesMap, key)
	case set == AffinityNodePortsMap:
		return u.ofUpdate(set, NodePortsMap, key)
	case set == NodePortsMap || lists.NodePort:
		return u.ofFrontend(NodePortsMap, key[:nodePortKeyLen])
	case set == ServicesMap || isLists:
		return u.ofFrontend(ServicesMap, key[:nft.AddrLen(u.want.Family)+nodePortKeyLen])
	case strings.HasPrefix(set, RangesPrefix):
		return change.Unit{Name: unitName("source ranges", binary.NativeEndian.Uint32([]byte(key)))}
	case set == MembersSet:
		return u.ofMember(key)
	}
	if number, ok := InList(set, key); ok {
		return change.Unit{Name: unitName("list", number)}
	}
	return change.Unit{}
}

// ofMember returns the unit of a member: that of its Service port, or that of the list that it shares. One that goes
// from such a list, or is not known, stands alone: the chain of a port may still look for it.
func (u Units) ofMember(key string) change.Unit {
	number, known := u.members[binary.NativeEndian.Uint32([]byte(key))]
	list := u.list[number]
	_, wanted := u.want.Sets[MembersSet].Map[key]
	switch {
	case known && list == 0:
		return u.ofAffinity(number)
	case known && wanted:
		return change.Unit{Name: unitName("list", list)}
	}
	return change.Unit{}
}

func (u Units) ofFrontend(verdicts, key string) change.Unit {
	for _, table := range []*nft.Table{u.want, u.have} {
		if number := affinityOf(table.Elements(verdicts)[key].Verdict); number != 0 {
			return u.ofAffinity(number)
		}
	}
	return change.Unit{Name: key, Whole: true}
}

// ofUpdate returns the unit of what leads connections of a frontend to the chain that updates affinity entries. That
// chain drops connections to endpoints that are no members: an element that goes is among the first, before a shared
// list gets endpoints that are no members, or it goes with the list.
func (u Units) ofUpdate(set, verdicts, key string) change.Unit {
	if _, wanted := u.want.Elements(set)[key]; wanted {
		return u.ofFrontend(verdicts, key)
	}
	unit := change.Unit{Name: u.ofFrontend(verdicts, key).Name, Refuses: true}
	if list := u.listBefore[affinityOf(u.have.Elements(verdicts)[key].Verdict)]; list != 0 {
		unit.Name = unitName("list", list)
	}
	return unit
}

// OfChain returns the unit of a chain.
func (u Units) OfChain(name string) change.Unit {
	if number, _, ok := ListOfChain(name); ok {
		return change.Unit{Name: unitName("list", number)}
	}
	if number, ok := affinityOfChain(name); ok {
		return u.ofAffinity(number)
	}
	switch p, _ := PolicyOfChain(name); {
	case p.SourceRanges != 0:
		return change.Unit{Name: unitName("source ranges", p.SourceRanges)}
	case p.Affinity != 0:
		return u.ofAffinity(p.Affinity)
	}
	return change.Unit{}
}

func (u Units) ofAffinity(number uint32) change.Unit {
	return change.Unit{Name: unitName("affinity", u.unitOf(number)[0]), Whole: true, Walks: true}
}

func unitName(what string, number uint32) string {
	return what + " " + strconv.FormatUint(uint64(number), 10)
}

// nodePortKeyLen is the length of a protocol and port in a key.
const nodePortKeyLen = 8
