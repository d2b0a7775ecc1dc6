package affinity

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// Facts say what the session affinity of a Service port follows from.
type Facts struct {
	ID      tracker.PortID
	Timeout time.Duration
	Several bool // ports of the Service have it
	// Cluster and Local are the two endpoint lists, sorted by address. A list that no frontend uses is empty.
	Cluster, Local []netip.AddrPort
	// Joint are the two lists instead, if ports of the Service may share them.
	Joint Joint
}

// Joint are lists of endpoints that ports of a Service may share. The zero value has none.
type Joint struct {
	Number uint32
	Port   uint16  // of the endpoints
	Has    [2]bool // whether there are endpoints: in the cluster-wide and in the local list
}

// A Port is the session affinity of one Service port. The zero Port has none.
type Port struct {
	Number   uint32 // stands in the names of its chains
	Protocol uint8
	Several  bool    // ports of the Service have affinity: see FollowChains
	Groups   []Group // ordered by list, then port; most Service ports have one
	Lists    []List  // of its groups; none if these have Joint lists
}

// A Group is the endpoints of one list that have the same port. Its affinity entries stand under its
// number. There is a group for each port, because nft can rewrite to an address from a map and one given
// port, but cannot reload a map that packets fill with both.
type Group struct {
	Family    nft.Family
	Namespace string
	Number    uint32
	List      uint32 // the number of the List that has its endpoints
	Local     bool   // of the list of this node's endpoints
	Port      uint16
	Timeout   time.Duration
}

// A List is the endpoints that the entries of one or several groups may name. They are elements of the set of members.
type List struct {
	Family  nft.Family
	Number  uint32
	Map     string       // the affinity map of its groups
	Members []netip.Addr // sorted
}

// Has reports whether an endpoint is a member.
func (l *List) Has(endpoint netip.Addr) bool {
	_, ok := slices.BinarySearchFunc(l.Members, endpoint, netip.Addr.Compare)
	return ok
}

// Next returns what the affinity of a Service port becomes. number gives a number to an identity: always the same one,
// and no other identity has it at the same time. All numbers that it gives must have one affinity map.
func (p *Port) Next(facts Facts, number func(identity string) uint32) Port {
	q := Port{Number: p.Number, Protocol: uint8(facts.ID.Protocol), Several: facts.Several}
	if q.Number == 0 {
		q.Number = number(identity(facts.ID))
	}
	group := func(local bool, port uint16) *Group {
		q.Groups = append(q.Groups, Group{
			Family: facts.ID.Family, Namespace: facts.ID.Namespace,
			Number: layout.ListNumber(p.groupNumber(facts.ID, port, number), local),
			Local:  local, Port: port, Timeout: facts.Timeout,
		})
		return &q.Groups[len(q.Groups)-1]
	}
	for i, list := range [][]netip.AddrPort{facts.Cluster, facts.Local} {
		local := i == 1
		if facts.Joint.Has[i] {
			group(local, facts.Joint.Port).List = layout.ListNumber(facts.Joint.Number, local)
		}
		if len(list) == 0 {
			continue
		}
		at := make(map[uint16]int) // where the lists of this one's ports are
		for _, ep := range list {
			i, known := at[ep.Port()]
			if !known {
				i = len(q.Lists)
				at[ep.Port()] = i
				g := group(local, ep.Port())
				g.List = g.Number
				q.Lists = append(q.Lists, List{Family: g.Family, Number: g.List, Map: layout.AffinityMap(g.Number),
					Members: make([]netip.Addr, 0, len(list)/len(at))})
			}
			q.Lists[i].Members = append(q.Lists[i].Members, ep.Addr())
		}
	}
	if len(q.Groups) > 1 {
		slices.SortFunc(q.Groups, compare)
	}
	return q
}

// groupNumber is the number of the two groups with a port.
func (p *Port) groupNumber(id tracker.PortID, port uint16, number func(identity string) uint32) uint32 {
	for i := range p.Groups {
		if p.Groups[i].Port == port {
			return p.Groups[i].Number / 2
		}
	}
	return number(groupIdentity(id, port))
}

func identity(id tracker.PortID) string { return "affinity " + id.String() }

// groupIdentity is the identity of the two groups, one of each list, with the same port. Their numbers are
// neighbours.
func groupIdentity(id tracker.PortID, port uint16) string {
	return identity(id) + " " + strconv.Itoa(int(port))
}

// compare orders groups by list, then port.
func compare(g, h Group) int {
	if g.Local != h.Local {
		return nft.TrueFirst(g.Local, h.Local)
	}
	return int(g.Port) - int(h.Port)
}

// Find returns the group of a list and a port; the zero Group if there is none.
func (p *Port) Find(local bool, port uint16) (found Group) {
	for i := range p.Groups {
		if p.Groups[i].Local == local && p.Groups[i].Port == port {
			found = p.Groups[i]
		}
	}
	return found
}

// Map names the affinity map that has the entries of the Service port.
func (p *Port) Map() string { return layout.AffinityMap(layout.ListNumber(p.Number, false)) }

// Uses reports whether a number is that of a group, or of its list.
func (p *Port) Uses(number uint32) bool {
	return slices.ContainsFunc(p.Groups, func(g Group) bool { return g.Number == number || g.List == number })
}

// other returns the group of the other list with the same port; the zero Group if there is none.
func (p *Port) other(g *Group) Group { return p.Find(!g.Local, g.Port) }

// onePort reports whether all groups have the same port.
func (p *Port) onePort() bool {
	return !slices.ContainsFunc(p.Groups, func(g Group) bool { return g.Port != p.Groups[0].Port })
}

// A Change is the difference between two values of one Service port's affinity, without that of their lists.
type Change struct {
	// Groups are new, or have another list or timeout. One that is gone has no list.
	Groups []Group
	// Freed are the numbers that the Service port does not need any more, as number returned them.
	Freed []uint32
}

// Compare says what a change from p to q means.
func (p *Port) Compare(q *Port) (c Change) {
	for i := range q.Groups {
		if now := &q.Groups[i]; p.Find(now.Local, now.Port) != *now {
			c.Groups = append(c.Groups, *now)
		}
	}
	for i := range p.Groups {
		before := &p.Groups[i]
		if q.Find(before.Local, before.Port).Number == 0 {
			c.Groups = append(c.Groups, Group{Family: before.Family, Number: before.Number})
			if q.other(before).Number == 0 && !(before.Local && p.other(before).Number != 0) {
				c.Freed = append(c.Freed, before.Number/2)
			}
		}
	}
	if p.Number != 0 && q.Number == 0 {
		c.Freed = append(c.Freed, p.Number)
	}
	return c
}

// EqualGroups reports whether two values of one Service port's affinity differ in their lists alone.
func (p *Port) EqualGroups(q *Port) bool {
	return p.Number == q.Number && p.Several == q.Several && slices.Equal(p.Groups, q.Groups)
}

// Changes are what a commit changes for affinity entries.
type Changes struct {
	Groups []Group // see Change.Groups
	Lists  []ListChange
}

// A ListChange is a list that has got other members; none if it is gone.
type ListChange struct {
	List
	Left bool // an endpoint has left it, so that entries may be wrong
}
