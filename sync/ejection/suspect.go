package ejection

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/tracker"
)

// A suspect is a port with connections that nothing has answered, or with endpoints that are left out.
type suspect struct {
	port *tracker.ServicePort
	syns map[synID]*syn
	out  map[netip.AddrPort]*out

	// The rest is known while the suspicion is open, and from the second reading on.
	compares bool     // there is a reading to compare with
	known    []uint32 // the IDs of the connections with an answer at the latest reading, sorted
	reading  []uint32 // those of the reading under way
	// answered says when an endpoint was last seen to have answered a connection that is new since the reading before.
	answered map[netip.AddrPort]time.Time
	// fresh is a client of such a connection; several says that there are others.
	fresh   netip.Addr
	several bool
	clients map[netip.Addr]*client // of syns
}

// A client is one that waits for an answer.
type client struct {
	answered bool   // by any endpoint, at any time that connection tracking remembers
	newly    places // endpoints that have answered a new connection
	waits    places // endpoints that it waits for, and that answer others
}

// places are two endpoints, or fewer: enough to know whether there is another one than a certain endpoint.
type places [2]netip.AddrPort

func (p *places) add(endpoint netip.AddrPort) {
	switch {
	case !p[0].IsValid():
		p[0] = endpoint
	case p[0] != endpoint:
		p[1] = endpoint
	}
}

func (p *places) other(endpoint netip.AddrPort) bool {
	return p[0].IsValid() && p[0] != endpoint || p[1].IsValid() && p[1] != endpoint
}

// A synID names a connection without an answer.
type synID struct {
	id       uint32 // the kernel's
	endpoint netip.AddrPort
}

// A syn is a connection without an answer.
type syn struct {
	client      netip.Addr
	first, last time.Time // of the looks that saw it
}

// An out is an endpoint that is left out, or was.
type out struct {
	since, until time.Time
	left         bool // out of the lists now
	wait         time.Duration
	times        int
	// tried is when it was put back to be tried; zero before that. awaits says that it is out again because a connection
	// waits for its answer; that happens once in a trial at most.
	tried           time.Time
	awaits, awaited bool
	clients, lostOf int
}

// trial reports whether the endpoint is being tried again.
func (o *out) trial() bool { return !o.tried.IsZero() }

// urgent reports whether the first connections of a trial may come, or wait for their answer.
func (o *out) urgent(now time.Time) bool {
	return o.awaits || o.trial() && !o.awaited && now.Sub(o.tried) < 3*lookInterval
}

func (o *out) shown(id tracker.PortID, endpoint netip.AddrPort) Endpoint {
	e := Endpoint{Port: id, Endpoint: endpoint, Since: o.since, Until: o.until, Times: o.times, Clients: o.clients,
		Connections: o.lostOf}
	if o.trial() {
		e.Until = time.Time{}
	}
	return e
}

func newSuspect(port *tracker.ServicePort) *suspect {
	return &suspect{port: port, syns: make(map[synID]*syn), out: make(map[netip.AddrPort]*out)}
}

// in reports whether an endpoint is in a list of a port.
func in(p *tracker.ServicePort, list []netip.AddrPort, endpoint netip.AddrPort) bool {
	endpoint, may := listed(p, endpoint)
	_, found := slices.BinarySearchFunc(list, endpoint, netip.AddrPort.Compare)
	return may && found
}

// listed returns an endpoint as the lists of a port have it.
func listed(p *tracker.ServicePort, endpoint netip.AddrPort) (as netip.AddrPort, may bool) {
	if p.TargetPort == 0 {
		return endpoint, true
	}
	return netip.AddrPortFrom(endpoint.Addr(), 0), endpoint.Port() == p.TargetPort
}

// member reports whether an endpoint is in a list of a port, or is left out of one.
func member(p *tracker.ServicePort, endpoint netip.AddrPort) bool {
	return in(p, p.Cluster, endpoint) || in(p, p.Local, endpoint) || missing(p, endpoint)
}

// missing reports whether an endpoint is left out of a list of a port.
func missing(p *tracker.ServicePort, endpoint netip.AddrPort) bool {
	endpoint, may := listed(p, endpoint)
	_, found := slices.BinarySearchFunc(p.LeftOut, endpoint, func(l tracker.LeftOut, endpoint netip.AddrPort) int {
		return l.Endpoint.Compare(endpoint)
	})
	return may && found
}

// stuck reports whether connections to an endpoint that wait for an answer should try another one: the rules in force
// do not lead to it any more.
func (s *suspect) stuck(endpoint netip.AddrPort) bool {
	o := s.out[endpoint]
	return o != nil && o.left && !o.awaits && missing(s.port, endpoint) &&
		!in(s.port, s.port.Cluster, endpoint) && !in(s.port, s.port.Local, endpoint)
}

// follow forgets endpoints of which Kubernetes has spoken since they were left out, or that are no part of the port any
// more.
func (s *suspect) follow(silent []netip.AddrPort) {
	for endpoint, o := range s.out {
		if o.left && !slices.Contains(silent, endpoint) || !o.left && !member(s.port, endpoint) {
			delete(s.out, endpoint)
		}
	}
}

// unanswered takes in a connection without an answer, and reports whether it is kept.
func (s *suspect) unanswered(flow *conntrack.Flow, now time.Time) bool {
	id := synID{flow.ID, flow.Endpoint()}
	known := s.syns[id]
	if known == nil {
		if len(s.syns) >= mostOfPort {
			return false
		}
		known = &syn{client: flow.Original.Source.Addr(), first: now}
		s.syns[id] = known
	}
	known.last = now
	return true
}

// forgetAnswered forgets connections that this look has not seen without an answer. A look that is not complete may
// have missed them.
func (s *suspect) forgetAnswered(now time.Time, complete bool) {
	for id, known := range s.syns {
		if known.last.Before(now) && (complete || now.Sub(known.first) > window) {
			delete(s.syns, id)
		}
	}
}

// open reports whether a connection has waited for long enough that it matters who was answered.
func (s *suspect) open(now time.Time) bool {
	for id, known := range s.syns {
		o, age := s.out[id.endpoint], now.Sub(known.first)
		switch {
		case o != nil && o.awaits:
			return true
		case o != nil && o.left, age > window:
		case age >= lookInterval*9/10:
			return true
		}
	}
	return false
}

// begin and end are the ends of a reading of the connections with an answer.
func (s *suspect) begin() {
	s.reading = s.reading[:0]
	if s.answered == nil {
		s.answered = make(map[netip.AddrPort]time.Time)
	}
	before := s.clients
	s.clients = make(map[netip.Addr]*client)
	for _, known := range s.syns {
		if s.clients[known.client] != nil {
			continue
		}
		c := new(client)
		if earlier := before[known.client]; earlier != nil {
			c.newly = earlier.newly
		}
		s.clients[known.client] = c
	}
}

func (s *suspect) end(complete bool) {
	slices.Sort(s.reading)
	s.known, s.reading = s.reading, s.known
	s.compares = complete
	for id, known := range s.syns {
		if !s.answered[id.endpoint].IsZero() {
			s.clients[known.client].waits.add(id.endpoint)
		}
	}
}

// close forgets what is known of answers.
func (s *suspect) close() {
	s.compares, s.known, s.reading, s.answered = false, nil, nil, nil
	s.fresh, s.several, s.clients = netip.Addr{}, false, nil
}

// answer takes in a connection with an answer.
func (s *suspect) answer(flow *conntrack.Flow, now time.Time) {
	endpoint, from := flow.Endpoint(), flow.Original.Source.Addr()
	if !member(s.port, endpoint) {
		return
	}
	s.reading = append(s.reading, flow.ID)
	waiting := s.clients[from]
	if waiting != nil {
		waiting.answered = true
	}
	if !s.compares {
		return
	}
	if _, old := slices.BinarySearch(s.known, flow.ID); old {
		return
	}
	if waiting != nil {
		waiting.newly.add(endpoint)
	}
	s.answered[endpoint] = now
	s.several = s.several || s.fresh.IsValid() && s.fresh != from
	s.fresh = from
}

// admitted reports whether it counts that an endpoint does not answer a client. A network policy may block the client,
// so something must have answered it: another endpoint answered a new connection, or any endpoint a connection that
// connection tracking still has. The second is not enough if the client also waits for another endpoint that answers
// others.
func (s *suspect) admitted(from netip.Addr, endpoint netip.AddrPort) bool {
	c := s.clients[from]
	return c != nil && (c.newly.other(endpoint) || c.answered && !c.waits.other(endpoint))
}

// A verdict is that an endpoint does not answer.
type verdict struct {
	endpoint             netip.AddrPort
	clients, connections int
}

// verdicts returns the endpoints that are to be left out.
//
// A connection counts against its endpoint if it has waited for longer than unanswered and less long than window, if
// the endpoint has answered no new connection since, and if its client is admitted. While an endpoint is tried again,
// only connections of the trial count.
//
// An endpoint is left out if another endpoint has answered a new connection since the first of these began, and if they
// come from two clients, or are three of the only client that is answered, or if it is tried again.
func (s *suspect) verdicts(now time.Time) (list []verdict) {
	if !s.compares {
		return nil
	}
	type count struct {
		clients     map[netip.Addr]int
		connections int
		oldest      time.Time
	}
	against := make(map[netip.AddrPort]*count)
	for id, known := range s.syns {
		age, o := now.Sub(known.first), s.out[id.endpoint]
		switch {
		case age < unanswered, age > window, known.last.Before(now), !known.first.After(s.answered[id.endpoint]):
		case o != nil && o.left && !o.awaits, o != nil && known.first.Before(o.tried):
		case !s.admitted(known.client, id.endpoint):
		default:
			c := against[id.endpoint]
			if c == nil {
				c = &count{clients: make(map[netip.Addr]int), oldest: known.first}
				against[id.endpoint] = c
			}
			c.clients[known.client]++
			c.connections++
			if known.first.Before(c.oldest) {
				c.oldest = known.first
			}
		}
	}
	// The endpoint that has answered a new connection last, and the last other one: the port may have 100,000.
	var last, other netip.AddrPort
	for endpoint, at := range s.answered {
		switch {
		case at.After(s.answered[last]):
			last, other = endpoint, last
		case at.After(s.answered[other]):
			other = endpoint
		}
	}
	for endpoint, c := range against {
		enough := len(c.clients) > 1 || s.out[endpoint] != nil
		for client, n := range c.clients {
			enough = enough || n >= 3 && !s.several && s.fresh == client
		}
		sibling := last
		if sibling == endpoint {
			sibling = other
		}
		if enough && s.answered[sibling].After(c.oldest) {
			list = append(list, verdict{endpoint, len(c.clients), c.connections})
		}
	}
	slices.SortFunc(list, func(a, b verdict) int { return a.endpoint.Compare(b.endpoint) })
	return list
}

// mayLeave reports whether one of the lists of the port can do without an endpoint: at most half of a list is left out.
func (s *suspect) mayLeave(endpoint netip.AddrPort) bool {
	may := func(list []netip.AddrPort, left func(tracker.LeftOut) bool) bool {
		length, gone := len(list), 1
		for _, l := range s.port.LeftOut {
			if left(l) {
				length++
			}
		}
		for other, o := range s.out {
			if o.left && other != endpoint {
				gone++
			}
		}
		return in(s.port, list, endpoint) && 2*gone <= length
	}
	if o := s.out[endpoint]; o != nil && o.awaits {
		return true // it counts already
	}
	return may(s.port.Cluster, func(l tracker.LeftOut) bool { return l.Cluster }) ||
		may(s.port.Local, func(l tracker.LeftOut) bool { return l.Local })
}

// leave leaves out an endpoint.
func (s *suspect) leave(v verdict, now time.Time) *out {
	o := s.out[v.endpoint]
	if o == nil {
		o = &out{wait: firstOut / 2}
		s.out[v.endpoint] = o
	}
	o.wait = min(2*o.wait, longestOut)
	o.since, o.until, o.tried, o.left, o.awaits, o.awaited = now, now.Add(o.wait), time.Time{}, true, false, false
	o.clients, o.lostOf = v.clients, v.connections
	o.times++
	return o
}

// endTerms puts endpoints back whose time is over, and follows those that are tried.
func (s *suspect) endTerms(now time.Time) {
	for endpoint, o := range s.out {
		if !o.trial() {
			if !now.Before(o.until) {
				o.left, o.tried = false, now
			}
			continue
		}
		waiting := false
		var oldest time.Duration
		for id, known := range s.syns {
			if id.endpoint == endpoint && !known.first.Before(o.tried) {
				waiting = true
				oldest = max(oldest, now.Sub(known.first))
			}
		}
		switch {
		case waiting && !o.awaited: // few connections have to find out
			o.left, o.awaits, o.awaited = true, true, true
		case o.awaits && (!waiting || oldest > unanswered+lookInterval): // answered, or nothing speaks against it
			o.left, o.awaits = false, false
		case !o.left && now.Sub(o.tried) >= o.wait:
			delete(s.out, endpoint)
		}
	}
}

// leftOut lists the endpoints that are left out, the oldest first.
func (s *suspect) leftOut() (list []netip.AddrPort) {
	for endpoint, o := range s.out {
		if o.left {
			list = append(list, endpoint)
		}
	}
	slices.SortFunc(list, func(a, b netip.AddrPort) int {
		return cmp.Or(s.out[a].since.Compare(s.out[b].since), a.Compare(b))
	})
	return list
}
