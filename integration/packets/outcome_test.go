package packets

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// A result says what became of one connection.
type result uint8

// The results of connections.
const (
	dropped   result = iota // nothing came out, and nothing was tracked
	delivered               // the first packet left the node or reached a listener on it
	rejected                // the client got an ICMP error or a reset
	vanished                // tracked, so past the last hook, but seen nowhere
	corrupted               // came out with a wrong checksum
)

// String returns the result as it stands in a test's failure.
func (f result) String() string {
	return [...]string{"dropped", "delivered", "rejected", "tracked but not delivered", "corrupted"}[f]
}

// An outcome is the result of one connection, and for a delivered one where it went.
type outcome struct {
	result   result
	endpoint netip.AddrPort // the destination that was reached
	source   netip.Addr     // the client's address as the endpoint sees it
}

// String returns the outcome as it stands in a test's failure.
func (o outcome) String() string {
	if o.result != delivered {
		return o.result.String()
	}
	return fmt.Sprintf("delivered to %s from %s", o.endpoint, o.source)
}

// A sighting is everything that was seen of one connection.
type sighting struct {
	forward  *packet // its first packet, under way to its destination
	accepted bool    // the client got an answer from a listener
	rejected bool    // the client got a refusal
}

// sightings sorts captured packets by the connections that they belong to. Packets of
// other connections are left out.
func sightings(connections []tuple, packets []packet, tracked trackedTable) map[tuple]*sighting {
	seen := make(map[tuple]*sighting, len(connections))
	for _, c := range connections {
		seen[c] = &sighting{}
	}
	for i := range packets {
		note(seen, &packets[i], tracked)
	}
	return seen
}

// note adds one packet to the connection that it belongs to.
func note(seen map[tuple]*sighting, p *packet, tracked trackedTable) {
	switch p.kind {
	case opens:
		if s := seen[p.origin(tracked)]; s != nil {
			s.forward = p
		}
	case accepts:
		if s := seen[p.reverse()]; s != nil {
			s.accepted = true
		}
	case resets:
		if s := seen[p.reverse()]; s != nil {
			s.rejected = true
		}
	case unreachable:
		if s := seen[p.quoted]; s != nil && p.dst.Addr() == p.quoted.src.Addr() {
			s.rejected = true
		}
	}
}

// origin returns the tuple with which the client sent a packet that has come out.
func (p *packet) origin(tracked trackedTable) tuple {
	if sent, ok := tracked.original[p.tuple]; ok {
		return sent
	}
	return p.tuple
}

// outcomeOf judges one connection by what was seen of it.
func outcomeOf(connection tuple, s *sighting, tracked trackedTable) outcome {
	translated, known := tracked.translated[connection]
	if !known {
		translated = connection
	}
	switch {
	case s.rejected:
		return outcome{result: rejected}
	case s.forward != nil && s.forward.device != nil && !s.forward.intact:
		return outcome{result: corrupted}
	case s.forward != nil:
		translated = s.forward.tuple
	case s.accepted:
	case known:
		return outcome{result: vanished}
	default:
		return outcome{result: dropped}
	}
	return outcome{result: delivered, endpoint: translated.dst, source: translated.src.Addr()}
}

// outcomes judges all connections of a flow.
func outcomes(seen map[tuple]*sighting, tracked trackedTable) map[tuple]outcome {
	outcomes := make(map[tuple]outcome, len(seen))
	for connection, s := range seen {
		outcomes[connection] = outcomeOf(connection, s, tracked)
	}
	return outcomes
}

// An expectation is what the connections of a flow have to come to; exactly one of DNAT,
// Reject, Drop and Passthrough is set.
type expectation struct {
	DNAT        []netip.AddrPort `json:"dnat,omitempty"`       // each is reached, and nothing else
	One         bool             `json:"one,omitempty"`        // with DNAT; one of them is reached instead
	Masquerade  *bool            `json:"masquerade,omitempty"` // with DNAT; nil: either way
	Reject      bool             `json:"reject,omitempty"`
	Drop        bool             `json:"drop,omitempty"`
	Passthrough bool             `json:"passthrough,omitempty"` // as without a proxy
}

// endpoints returns how many different endpoints a flow reaches, at least 1.
func (e expectation) endpoints() int { return max(1, len(e.DNAT)) }

// accepts reports whether an outcome of a connection is as expected, on a node that has
// the given addresses.
func (e expectation) accepts(connection tuple, o outcome, node []netip.Addr) bool {
	switch {
	case e.Reject:
		return o.result == rejected
	case e.Drop:
		return o.result == dropped
	case o.result != delivered:
		return false
	case e.Passthrough:
		return o.endpoint == connection.dst && o.source == connection.src.Addr()
	}
	return slices.Contains(e.DNAT, o.endpoint) && e.acceptsSource(connection.src.Addr(), o.source, node)
}

// acceptsSource reports whether the source that the endpoint sees is as expected.
func (e expectation) acceptsSource(sent, seen netip.Addr, node []netip.Addr) bool {
	switch {
	case e.Masquerade == nil:
		return true
	case *e.Masquerade:
		return slices.Contains(node, seen)
	}
	return seen == sent
}

// String returns the expectation as it stands in a test's failure.
func (e expectation) String() string {
	switch {
	case e.Reject:
		return rejected.String()
	case e.Drop:
		return dropped.String()
	case e.Passthrough:
		return "delivered as sent"
	case e.Masquerade == nil:
		return fmt.Sprintf("delivered to %v", e.DNAT)
	case *e.Masquerade:
		return fmt.Sprintf("delivered to %v from the node", e.DNAT)
	}
	return fmt.Sprintf("delivered to %v from the client", e.DNAT)
}

// complaint returns why the outcomes of a flow's connections are not as expected, or "".
func (e expectation) complaint(outcomes map[tuple]outcome, node []netip.Addr) string {
	counts := map[outcome]int{}
	reached := map[netip.AddrPort]bool{}
	fine := true
	for connection, o := range outcomes {
		counts[o]++
		reached[o.endpoint] = true
		fine = fine && e.accepts(connection, o, node)
	}
	for _, endpoint := range e.DNAT {
		fine = fine && (e.One || reached[endpoint])
	}
	fine = fine && !(e.One && len(reached) > 1)
	if fine {
		return ""
	}
	return fmt.Sprintf("want: %s\ngot:\n%s", e, histogram(counts))
}

// histogram prints how often each outcome occurred, one line each.
func histogram(counts map[outcome]int) string {
	lines := make([]string, 0, len(counts))
	for _, o := range slices.SortedFunc(maps.Keys(counts), func(a, b outcome) int {
		return strings.Compare(a.String(), b.String())
	}) {
		lines = append(lines, fmt.Sprintf("  %4d x %s", counts[o], o))
	}
	return strings.Join(lines, "\n")
}
