package layout

import (
	"encoding/binary"
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
	members    map[uint32]uint32 // the number of a Service port's affinity, by that of its members
	lists      map[uint32]uint32 // the number of the shared list that it chooses from, by that of its affinity
	// with is the affinity that another one changes together with: a frontend goes from one to the other.
	with map[uint32]uint32
}

// NewUnits returns the units of a table that is in the kernel and becomes the wanted one. have needs no more than the
// verdicts that differ; it is nil if there is no table.
func NewUnits(have, want *nft.Table) Units {
	u := Units{have, want, make(map[uint32]uint32), make(map[uint32]uint32), make(map[uint32]uint32)}
	for _, verdicts := range []string{ServicesMap, NodePortsMap} {
		if have == nil {
			break
		}
		for key, element := range have.Elements(verdicts) {
			from, to := affinityOf(element), affinityOf(want.Elements(verdicts)[key])
			if from, to = u.root(from), u.root(to); from != 0 && to != 0 && from != to {
				u.with[from] = to
			}
		}
	}
	for name, chain := range want.Chains {
		number, ok := affinityOfChain(name)
		if p, _ := PolicyOfChain(name); p.Affinity != 0 {
			for _, rule := range chain.Rules {
				if v, is := rule[len(rule)-1].(nft.Verdict); is {
					if list, shared := ListOfChain(v.Chain); shared {
						u.lists[p.Affinity] = list
					}
				}
			}
		}
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
	return u
}

// OfElement returns the unit of an element.
func (u Units) OfElement(set, key string) change.Unit {
	lists, isLists := endpointMaps[set]
	switch {
	case set == ClusterIPsSet:
		return change.Unit{Refuses: true}
	case set == NodePortsMap || set == AffinityNodePortsMap || lists.NodePort:
		return u.ofFrontend(NodePortsMap, key[:nodePortKeyLen])
	case set == ServicesMap || set == AffinityFrontendsMap || set == BeforeNodePortsSet || isLists:
		unit := u.ofFrontend(ServicesMap, key[:nft.AddrLen(u.want.Family)+nodePortKeyLen])
		unit.Whole = set != BeforeNodePortsSet // comes first: the node port that it hides is of another unit
		return unit
	case strings.HasPrefix(set, RangesPrefix):
		return change.Unit{Name: unitName("source ranges", binary.NativeEndian.Uint32([]byte(key)))}
	case set == MembersSet:
		return u.ofMember(key)
	}
	if number, _, ok := InList(set, key); ok {
		return change.Unit{Name: unitName("list", number)}
	}
	return change.Unit{}
}

// ofMember returns the unit of a member: that of its Service port, or that of the list that it shares. One that goes
// from such a list, or is not known, stands alone: the chain of a port may still look for it.
func (u Units) ofMember(key string) change.Unit {
	number, known := u.members[binary.NativeEndian.Uint32([]byte(key))]
	list := u.lists[number]
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
		if affinity := affinityOf(table.Elements(verdicts)[key]); affinity != 0 {
			return u.ofAffinity(affinity)
		}
	}
	return change.Unit{Name: key, Whole: true}
}

// OfChain returns the unit of a chain.
func (u Units) OfChain(name string) change.Unit {
	if number, ok := ListOfChain(name); ok {
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
	case p.List != 0:
		return change.Unit{Name: unitName("list", p.List)}
	}
	return change.Unit{}
}

func (u Units) ofAffinity(number uint32) change.Unit {
	return change.Unit{Name: unitName("affinity", u.root(number)), Whole: true, Walks: true}
}

// root is the affinity that stands for all those that change together.
func (u Units) root(number uint32) uint32 {
	root := number
	for u.with[root] != 0 {
		root = u.with[root]
	}
	if root != number {
		u.with[number] = root // 10,000 ports may have passed a frontend on in a row
	}
	return root
}

// affinityOf is the number of the affinity of a frontend that has an element; 0 if it has none.
func affinityOf(frontend nft.Element) uint32 {
	if frontend.Verdict == nil {
		return 0
	}
	p, _ := PolicyOf(*frontend.Verdict)
	return p.Affinity
}

func unitName(what string, number uint32) string {
	return what + " " + strconv.FormatUint(uint64(number), 10)
}

// nodePortKeyLen is the length of a protocol and port in a key.
const nodePortKeyLen = 8
