package services

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/tracker"
)

// frontendKind is what a frontend is to the Service port that claims it. Where one Service
// port claims an address twice, the smaller kind counts.
type frontendKind uint8

const (
	clusterIP frontendKind = iota + 1
	loadBalancerIP
	externalIP
	nodePort
)

// A claim is a Service port's wish for a frontend.
type claim struct {
	port *portState
	kind frontendKind
}

// compare orders claims: the first one is served. A cluster IP belongs to the Service that
// the API server gave it to, whoever else lists that address; otherwise the older Service
// wins.
func (c claim) compare(d claim) int {
	if c.precedes(d) {
		return -1
	}
	if d.precedes(c) {
		return 1
	}
	return 0
}

func (c claim) precedes(d claim) bool {
	if c.kind == clusterIP != (d.kind == clusterIP) {
		return c.kind == clusterIP
	}
	return c.port.current.Older(d.port.current)
}

// A frontendState is a frontend with its claims, and what has been made of the first.
type frontendState struct {
	tracker.Frontend
	claims []claim // in order; the first one is served
	shown  program
}

// drop removes the claim of a Service port.
func (s *frontendState) drop(port *portState) {
	s.claims = slices.DeleteFunc(s.claims, func(c claim) bool { return c.port == port })
}

// claim adds or replaces the claim of a Service port.
func (s *frontendState) claim(c claim) {
	s.drop(c.port)
	i, _ := slices.BinarySearchFunc(s.claims, c, claim.compare)
	s.claims = slices.Insert(s.claims, i, c)
}

// A Conflict is a frontend that Loser asks for and does not get, because Winner has it.
type Conflict struct {
	tracker.Frontend
	Winner, Loser tracker.PortID
}

// String says who has the frontend and who goes without.
func (c Conflict) String() string {
	return fmt.Sprintf("%s is claimed by Service %s and by Service %s, which is not served there: the older Service wins, a cluster IP always does",
		c.Frontend, c.Winner, c.Loser)
}

// A wantedFrontend is a frontend that a Service port wants, and what it is to it.
type wantedFrontend struct {
	tracker.Frontend
	kind frontendKind
}

// frontendsOf lists where a Service port wants to be reached. Of the ways in which it names
// one address, the first of cluster IP, load-balancer IP and external IP counts.
func frontendsOf(p *tracker.ServicePort) []wantedFrontend {
	wanted := make([]wantedFrontend, 0, 2+len(p.LoadBalancers)+len(p.ExternalIPs))
	if p.NodePort != 0 {
		wanted = append(wanted, wantedFrontend{tracker.NodePort(p.ID.Family, p.ID.Protocol, p.NodePort), nodePort})
	}
	add := func(addr netip.Addr, kind frontendKind) {
		wanted = append(wanted, wantedFrontend{tracker.Frontend{Address: addr, Protocol: p.ID.Protocol, Port: p.Port}, kind})
	}
	add(p.ClusterIP, clusterIP)
	for _, addr := range p.LoadBalancers {
		if addr != p.ClusterIP {
			add(addr, loadBalancerIP)
		}
	}
	for _, addr := range p.ExternalIPs {
		if _, balanced := slices.BinarySearchFunc(p.LoadBalancers, addr, netip.Addr.Compare); addr != p.ClusterIP && !balanced {
			add(addr, externalIP)
		}
	}
	return wanted
}

// noteConflicts notes who goes without a frontend.
func (r *familyRules) noteConflicts(state *frontendState) {
	if len(state.claims) < 2 && r.conflicts[state.Frontend] == nil {
		return
	}
	before := r.conflicts[state.Frontend]
	var now []Conflict
	for i := 1; i < len(state.claims); i++ {
		c := Conflict{state.Frontend, state.claims[0].port.current.ID, state.claims[i].port.current.ID}
		now = append(now, c)
		if !slices.Contains(before, c) {
			r.fresh = append(r.fresh, c)
		}
	}
	r.noteSuccession(state, before)
	if now == nil {
		delete(r.conflicts, state.Frontend)
		return
	}
	r.conflicts[state.Frontend] = now
}

// noteSuccession notes whether who went without the frontend before has it now.
func (r *familyRules) noteSuccession(state *frontendState, before []Conflict) {
	if len(state.claims) == 0 {
		return
	}
	owner := state.claims[0].port.current.ID
	for _, c := range before {
		if c.Loser == owner {
			r.successions = append(r.successions, Succession{state.Frontend, c.Winner, owner})
		}
	}
}

// A Succession is a frontend that Heir asked for in vain before and has now.
type Succession struct {
	tracker.Frontend
	Before, Heir tracker.PortID
}

// Successions returns those that have come about since it was last called.
func (r *Ruleset) Successions() (list []Succession) {
	for _, f := range r.config.Families {
		family := r.families[f]
		list, family.successions = append(list, family.successions...), nil
	}
	return list
}

// Conflicts returns the conflicts that have come up since it was last called, and the
// number of those that stand.
func (r *Ruleset) Conflicts() (fresh []Conflict, standing int) {
	for _, f := range r.config.Families {
		family := r.families[f]
		fresh, family.fresh = append(fresh, family.fresh...), nil
		for _, conflicts := range family.conflicts {
			standing += len(conflicts)
		}
	}
	return fresh, standing
}
