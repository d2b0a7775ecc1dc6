package services

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft/change"
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
	port    *portState
	kind    frontendKind
	givenUp bool // as in wantedFrontend, once giveWay has come to it
	// reported says that Conflicts has reported this claim as one that is not served.
	reported bool
}

// precedes orders claims: the first one is served. The API server assigns a cluster IP to one Service, so that
// Service comes first. Then comes the Service whose status has the address as a load balancer's. Otherwise the older
// Service wins. A frontend that its Service gives up goes to any other.
func (c claim) precedes(d claim) bool {
	if c.givenUp != d.givenUp {
		return d.givenUp
	}
	if c.kind != d.kind {
		return c.kind < d.kind
	}
	return tracker.ByAge(c.port.current, d.port.current) < 0
}

// claims are those to one frontend, as a heap: the first one is served. Each change costs
// O(log n) however many there are, for any tenant may add one. It is a heap.Interface.
type claims struct {
	list   []claim
	places map[*portState]int // of each port in list; nil until there is a second claim
}

func (s *claims) Len() int           { return len(s.list) }
func (s *claims) Less(i, j int) bool { return s.list[i].precedes(s.list[j]) }

func (s *claims) Swap(i, j int) {
	s.list[i], s.list[j] = s.list[j], s.list[i]
	s.places[s.list[i].port], s.places[s.list[j].port] = i, j
}

// Push appends a claim at the end of the list, for package heap.
func (s *claims) Push(c any) {
	if s.places == nil {
		s.places = map[*portState]int{s.list[0].port: 0}
	}
	s.places[c.(claim).port] = len(s.list)
	s.list = append(s.list, c.(claim))
}

// Pop removes the last claim of the list and returns it, for package heap.
func (s *claims) Pop() any {
	last := s.list[len(s.list)-1]
	s.list = s.list[:len(s.list)-1]
	delete(s.places, last.port)
	return last
}

// first returns the claim that is served; nil if there is none.
func (s *claims) first() *claim {
	if len(s.list) == 0 {
		return nil
	}
	return &s.list[0]
}

// of returns the claim of a port; nil if it has none.
func (s *claims) of(port *portState) *claim {
	if place, ok := s.places[port]; ok {
		return &s.list[place]
	}
	if first := s.first(); first != nil && first.port == port {
		return first
	}
	return nil
}

// set adds a port's claim or replaces it; its right may have changed with the port.
func (s *claims) set(port *portState, wanted wantedFrontend) {
	switch have := s.of(port); {
	case have != nil:
		have.kind, have.givenUp = wanted.kind, wanted.givenUp
		if len(s.list) > 1 {
			heap.Fix(s, s.places[port])
		}
	case len(s.list) == 0: // as nearly always
		s.list = append(s.list, claim{port: port, kind: wanted.kind, givenUp: wanted.givenUp})
	default:
		if only := &s.list[0]; len(s.list) == 1 {
			only.givenUp = only.givenUp || only.port.leaving
		}
		heap.Push(s, claim{port: port, kind: wanted.kind, givenUp: wanted.givenUp})
	}
}

// drop removes a port's claim.
func (s *claims) drop(port *portState) {
	if len(s.list) > 1 {
		heap.Remove(s, s.places[port])
		return
	}
	*s = claims{}
}

// losers returns how many go without.
func (s *claims) losers() int { return max(len(s.list)-1, 0) }

// A frontendState is a frontend with its claims, and what has been made of the first.
type frontendState struct {
	tracker.Frontend
	claims    claims
	shown     program
	touched   bool        // it is in familyRules.touchedFrontends
	before    connections // at the last commit, if it is touched
	passing   bool        // it is in familyRules.givingWay: shown is of a port that has lost it, or nothing
	hidesPort bool        // it is in layout.BeforeNodePortsSet
}

// A Conflict is a frontend that two Services claim: Winner is served there, Loser is not.
type Conflict struct {
	tracker.Frontend
	Winner, Loser tracker.PortID
}

// String says which Service is served at the frontend, and why.
func (c Conflict) String() string {
	return fmt.Sprintf("kube-nft serves Service %s at %s, not Service %s, which claims it as well: a cluster IP comes "+
		"first, then a load balancer's address in status, then the older Service; an address comes before a node port",
		c.Winner, c.Frontend, c.Loser)
}

// A wantedFrontend is a frontend that a Service port wants, and what it is to it.
type wantedFrontend struct {
	tracker.Frontend
	kind    frontendKind
	givenUp bool           // the port has it until a later step removes it: any other claim is served first
	state   *frontendState // once it is claimed
}

// frontendsOf lists where a Service port wants to be reached. Of the ways in which it names
// one address, the first of cluster IP, load-balancer IP and external IP counts.
func frontendsOf(p *tracker.ServicePort) []wantedFrontend {
	wanted := make([]wantedFrontend, 0, p.Frontends())
	if p.NodePort != 0 {
		wanted = append(wanted,
			wantedFrontend{tracker.NodePort(p.ID.Family, p.ID.Protocol, p.NodePort), nodePort, p.Leaving, nil})
	}
	add := func(addr netip.Addr, kind frontendKind) {
		wanted = append(wanted, wantedFrontend{tracker.Frontend{Address: addr, Protocol: p.ID.Protocol, Port: p.Port}, kind,
			givesUp(p, addr), nil})
	}
	add(p.ClusterIP, clusterIP)
	for _, addr := range p.LoadBalancers {
		if addr != p.ClusterIP {
			add(addr, loadBalancerIP)
		}
	}
	for _, addr := range p.ExternalIPs {
		if _, balanced := slices.BinarySearchFunc(p.LoadBalancers, addr, netip.Addr.Compare); addr != p.ClusterIP &&
			!balanced {
			add(addr, externalIP)
		}
	}
	return wanted
}

// givesUp reports whether a Service port gives up its frontend at an address.
func givesUp(p *tracker.ServicePort, addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(p.GivenUp, addr, netip.Addr.Compare)
	return found || p.Leaving
}

// A contest is what has happened to a frontend with several claims since conflicts were last
// reported. It grows with what happens, not with the number of claims.
type contest struct {
	winner  tracker.PortID          // the Service port that was served at that time
	changed map[*portState]struct{} // whose claims are new, or were served for a time
}

// claim adds a Service port's claim to a frontend or replaces it. The claim of a port that is
// not served programs nothing.
func (fr *familyRules) claim(wanted *wantedFrontend, port *portState) {
	state := fr.frontends[wanted.Frontend]
	if state == nil {
		state = &frontendState{Frontend: wanted.Frontend}
		fr.frontends[wanted.Frontend] = state
	}
	wanted.state = state
	losers, first := state.claims.losers(), state.claims.first()
	now := *wanted
	if now.givenUp && losers > 0 && first.port == port && !first.givenUp {
		now.givenUp = false
		namespace := port.current.ID.Namespace
		if others := fr.givingWay[namespace]; len(others) == 0 || others[len(others)-1].port != port {
			fr.givingWay[namespace] = append(others, handover{port: port})
		}
	}
	fr.setClaim(now, port)
}

// setClaim is claim with the claim's rank.
func (fr *familyRules) setClaim(wanted wantedFrontend, port *portState) {
	state := wanted.state
	var before *portState
	if first := state.claims.first(); first != nil {
		before = first.port
	}
	losers := state.claims.losers()
	state.claims.set(port, wanted)
	fr.standing += state.claims.losers() - losers
	if before != nil && before != port || losers > 0 {
		changed := fr.contest(state, before).changed
		changed[before], changed[port] = struct{}{}, struct{}{}
	}
	if before != nil && state.claims.first().port != before {
		fr.pass(state, before)
	} else {
		fr.refresh(state, port)
	}
}

// pass programs a frontend that one port loses to another. The lists of both may be long, and a Service may take 1,000
// addresses at once, or give them up: beyond what a commit may have, the frontend waits for giveWay.
func (fr *familyRules) pass(state *frontendState, from *portState) {
	// Shared lists, and chains of session affinity, go with their port.
	mayStay := state.shown.policy.List == 0 && state.shown.policy.Affinity == 0
	switch {
	case fr.passed < stagedFrom || !mayStay:
		before := fr.Work().Elements
		fr.program(state)
		fr.passed += fr.Work().Elements - before
	case !state.passing:
		namespace := from.current.ID.Namespace
		state.passing, fr.givingWay[namespace] = true, append(fr.givingWay[namespace], handover{state: state})
	}
}

// refresh programs what a port does at a frontend, if it is served there, or until the frontend passes to another port.
func (fr *familyRules) refresh(state *frontendState, port *portState) {
	switch {
	case state.passing && state.shown.id == port.current.ID:
		fr.reach(state, state.claims.of(port).serve(state.Frontend))
	case !state.passing && state.claims.first().port == port:
		fr.program(state)
	}
}

// yield marks which frontends a port gives up. What they are programmed to do stays, but where another port has claimed
// one, too: a Service may give up 100,000 frontends at once.
func (fr *familyRules) yield(port *portState) {
	for i := range port.frontends {
		f := &port.frontends[i]
		before := f.givenUp
		f.givenUp = givesUp(port.current, f.Address)
		switch {
		case f.givenUp == before:
		case f.state.claims.losers() == 0:
			f.state.claims.first().givenUp = f.givenUp
		default:
			fr.claim(f, port)
		}
	}
}

// A handover is what waits in familyRules.givingWay: a port that gives up frontends which others have claimed, or a
// frontend that another port has won.
type handover struct {
	port  *portState
	state *frontendState
}

// giveWay lets frontends that ports give up, or have lost, go to others that have claimed them, about n elements of
// changes: a Service may have 10,000 of them. The namespace with the shortest queue comes first. It adds to work what
// it has done for each namespace.
func (fr *familyRules) giveWay(n int, work *change.Tally) {
	fewest := func(a, b string) int {
		return cmp.Or(cmp.Compare(len(fr.givingWay[a]), len(fr.givingWay[b])), cmp.Compare(a, b))
	}
	if fr.passed = 0; len(fr.givingWay) == 0 { // as nearly always
		return
	}
	end := fr.Work().Elements + n
	for _, namespace := range slices.SortedFunc(maps.Keys(fr.givingWay), fewest) {
		before := fr.Work()
		for len(fr.givingWay[namespace]) > 0 && fr.Work().Elements < end {
			next := fr.givingWay[namespace][0]
			fr.givingWay[namespace] = fr.givingWay[namespace][1:] // handOver may add to it
			fr.handOver(next)
		}
		work.Count(namespace, fr.Journal, before)
		if len(fr.givingWay[namespace]) == 0 {
			delete(fr.givingWay, namespace)
		}
	}
}

// handOver does what has waited.
func (fr *familyRules) handOver(next handover) {
	if next.state != nil {
		if next.state.passing {
			fr.program(next.state)
		}
		return
	}
	port := next.port
	if port.leaving && !port.current.Leaving {
		fr.noteChange(port)
		port.current = port.current.With(func(spec *tracker.PortSpec) { spec.Leaving = true })
	}
	for _, wanted := range port.frontends {
		if wanted.givenUp && !wanted.state.claims.of(port).givenUp {
			fr.setClaim(wanted, port)
		}
	}
}

// unclaim removes a Service port's claim to a frontend.
func (fr *familyRules) unclaim(state *frontendState, port *portState) {
	served := state.claims.first().port == port
	losers := state.claims.losers()
	if served && losers > 0 {
		fr.contest(state, port)
	}
	state.claims.drop(port)
	fr.standing += state.claims.losers() - losers
	if contest := fr.contests[state]; contest != nil {
		delete(contest.changed, port)
	}
	if state.shown.id == port.current.ID && (state.passing || losers > 0 && fr.passed >= stagedFrom) {
		fr.reach(state, program{}) // nothing of the port may stay
	}
	switch {
	case served && losers > 0:
		fr.pass(state, port)
	case served:
		fr.program(state)
	}
	if state.claims.Len() == 0 {
		delete(fr.frontends, state.Frontend)
		delete(fr.contests, state)
	}
}

// contest returns the contest for a frontend, with the port that is served there so far.
func (fr *familyRules) contest(state *frontendState, served *portState) *contest {
	c := fr.contests[state]
	if c == nil {
		c = &contest{winner: served.current.ID, changed: make(map[*portState]struct{})}
		fr.contests[state] = c
	}
	return c
}

// reportContests turns the contests since the last report into conflicts and ownerChanges. A winner that was replaced
// before the next commit has never been in the kernel and is not reported.
func (fr *familyRules) reportContests() {
	fresh, ownerChanges := len(fr.fresh), len(fr.ownerChanges)
	for state, contest := range fr.contests {
		winner := state.claims.first()
		for port := range contest.changed {
			if c := state.claims.of(port); c != winner && !c.reported && !c.givenUp && !port.leaving {
				c.reported = true
				fr.fresh = append(fr.fresh, Conflict{state.Frontend, winner.port.current.ID, port.current.ID})
			}
		}
		if winner.reported {
			winner.reported = false
			fr.ownerChanges = append(fr.ownerChanges, OwnerChange{state.Frontend, contest.winner, winner.port.current.ID})
		}
	}
	clear(fr.contests)
	slices.SortFunc(fr.fresh[fresh:], func(a, b Conflict) int {
		return cmp.Or(a.Frontend.Compare(b.Frontend), a.Loser.Compare(b.Loser))
	})
	slices.SortFunc(fr.ownerChanges[ownerChanges:], func(a, b OwnerChange) int { return a.Frontend.Compare(b.Frontend) })
}

// An OwnerChange is a frontend that moved from Before to Now, which Conflicts had reported as a loser.
type OwnerChange struct {
	tracker.Frontend
	Before, Now tracker.PortID
}

// OwnerChanges returns the changes of owners since the last call.
func (r *Ruleset) OwnerChanges() (list []OwnerChange) {
	for _, f := range r.config.Families {
		family := r.families[f]
		family.reportContests()
		list, family.ownerChanges = append(list, family.ownerChanges...), nil
	}
	return list
}

// Conflicts returns the new conflicts since the last call, and the number of all present conflicts. Each conflict is
// returned once while its loser is not served, even if the winner changes.
func (r *Ruleset) Conflicts() (fresh []Conflict, standing int) {
	for _, f := range r.config.Families {
		family := r.families[f]
		family.reportContests()
		fresh, family.fresh = slices.Concat(fresh, family.fresh, family.overlaps.update(family)), nil
		standing += family.standing + len(family.overlaps.conflicts)
	}
	return fresh, standing
}
