package affinity

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services/lists"
	"github.com/kube-nft/kube-nft/tracker"
)

// Facts say what the session affinity of a Service port follows from.
type Facts struct {
	ID      tracker.PortID
	Timeout time.Duration
	Several bool // ports of the Service have it
	// Cluster and Local are the two endpoint lists, sorted by address. A list that no frontend uses is empty.
	Cluster, Local []netip.AddrPort
	// Joint are the two lists instead, if several ports of the Service share them.
	Joint Joint
}

// Joint are lists of endpoints that several ports of a Service share. The zero value has none.
type Joint struct {
	Number  uint32
	Port    uint16          // of the endpoints
	Members [2][]netip.Addr // cluster-wide and local
}

// List is the number under which the set of members has one of the lists.
func (j *Joint) List(local bool) uint32 { return layout.ListNumber(j.Number, local) }

// MembersSet returns the keys of the elements that the lists have in the set of members, as Port.MembersSet does.
func (j *Joint) MembersSet() (keys []string) {
	if len(j.Members[0]) == 0 || len(j.Members[1]) == 0 {
		return nil
	}
	for i, members := range j.Members {
		for _, addr := range members {
			keys = append(keys, layout.MemberKey(j.List(i == 1), addr))
		}
	}
	return keys
}

// A Port is the session affinity of one Service port. The zero Port has none.
type Port struct {
	Number   uint32 // stands in the names of its chains
	Protocol uint8
	Several  bool    // ports of the Service have affinity: see FollowChains
	Groups   []Group // ordered by list, then port; most Service ports have one
}

// A Group is the endpoints of one list that have the same port. Its affinity entries stand under its
// number. There is a group for each port, because nft can rewrite to an address from a map and one given
// port, but cannot reload a map that packets fill with both.
type Group struct {
	Family    nft.Family
	Namespace string
	Number    uint32
	List      uint32 // under which the set of members has it
	Local     bool   // of the list of this node's endpoints
	Port      uint16
	Members   []netip.Addr // sorted: the endpoints that entries may name
	Timeout   time.Duration
}

// New returns the affinity of a Service port. number gives a number to an identity: always the same one, and
// no other identity has it at the same time. All numbers that it gives must have one affinity map.
func New(facts Facts, number func(identity string) uint32) Port {
	p := Port{Number: number(identity(facts.ID)), Protocol: uint8(facts.ID.Protocol), Several: facts.Several}
	group := func(local bool, port uint16, members []netip.Addr) Group {
		g := Group{
			Family: facts.ID.Family, Namespace: facts.ID.Namespace,
			Number: layout.ListNumber(number(groupIdentity(facts.ID, port)), local),
			Local:  local, Port: port, Members: members, Timeout: facts.Timeout,
		}
		if g.List = g.Number; facts.Joint.Number != 0 {
			g.List = facts.Joint.List(local)
		}
		return g
	}
	for _, local := range []bool{false, true} {
		list, joint := facts.Cluster, facts.Joint.Members[0]
		if local {
			list, joint = facts.Local, facts.Joint.Members[1]
		}
		if len(joint) > 0 {
			p.Groups = append(p.Groups, group(local, facts.Joint.Port, joint))
		}
		at := make(map[uint16]int) // where the groups of this list are
		for _, ep := range list {
			i, known := at[ep.Port()]
			if !known {
				i = len(p.Groups)
				at[ep.Port()] = i
				p.Groups = append(p.Groups, group(local, ep.Port(), make([]netip.Addr, 0, len(list)/len(at))))
			}
			p.Groups[i].Members = append(p.Groups[i].Members, ep.Addr())
		}
	}
	if len(p.Groups) > 1 {
		slices.SortFunc(p.Groups, compare)
	}
	return p
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

// Uses reports whether a number is that of a group, or of its members.
func (p *Port) Uses(number uint32) bool {
	return slices.ContainsFunc(p.Groups, func(g Group) bool { return g.Number == number || g.List == number })
}

// other returns the group of the other list with the same port; the zero Group if there is none.
func (p *Port) other(g *Group) Group { return p.Find(!g.Local, g.Port) }

// onePort reports whether all groups have the same port.
func (p *Port) onePort() bool {
	return !slices.ContainsFunc(p.Groups, func(g Group) bool { return g.Port != p.Groups[0].Port })
}

// Has reports whether an endpoint is a member.
func (g *Group) Has(endpoint netip.Addr) bool {
	_, ok := slices.BinarySearchFunc(g.Members, endpoint, netip.Addr.Compare)
	return ok
}

// An Endpoint is an endpoint of the group with a number.
type Endpoint struct {
	Number uint32
	Addr   netip.Addr
}

// A Change is the difference between two values of one Service port's affinity.
type Change struct {
	// Groups are the groups that entries have to follow now: new ones, and those with other members or another
	// timeout. One that is gone has no members.
	Groups []Group
	// Left and Came are the endpoints that are no members of a group any more, and those that have become one.
	// Left includes groups that an endpoint was never a member of, if a packet under way to it could make an
	// entry there: of groups that all have one port, no rule compares the port.
	Left, Came []Endpoint
	// Freed are the numbers that the Service port does not need any more, as number returned them.
	Freed []uint32
}

// Compare says what a change from p to q means.
func (p *Port) Compare(q *Port) (c Change) {
	for i := range q.Groups {
		now := &q.Groups[i]
		before := p.Find(now.Local, now.Port)
		left, came := lists.Difference(before.Members, now.Members, netip.Addr.Compare)
		for _, addr := range came {
			c.Came = append(c.Came, Endpoint{now.Number, addr})
		}
		if len(left)+len(came) > 0 || before.Timeout != now.Timeout {
			c.Groups = append(c.Groups, *now)
		}
	}
	onePort := q.onePort()
	for i := range p.Groups {
		before := &p.Groups[i]
		now := q.Find(before.Local, before.Port)
		left, _ := lists.Difference(before.Members, now.Members, netip.Addr.Compare)
		for _, addr := range left {
			c.Left = append(c.Left, Endpoint{before.Number, addr})
			for j := range q.Groups {
				if g := &q.Groups[j]; onePort && g.Number != before.Number && !g.Has(addr) {
					c.Left = append(c.Left, Endpoint{g.Number, addr})
				}
			}
		}
		if now.Number == 0 {
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

// MembersSet returns the keys of the elements that p has in the set of members, without those of Joint lists. Only the
// rules for a port of both lists look there: see UpdateChain.
func (p *Port) MembersSet() (keys []string) {
	for i := range p.Groups {
		if g := &p.Groups[i]; g.List == g.Number && p.other(g).Number != 0 {
			for _, addr := range g.Members {
				keys = append(keys, layout.MemberKey(g.Number, addr))
			}
		}
	}
	return keys
}
