package readback

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/words"
	"github.com/kube-nft/kube-nft/tracker"
)

// An Explanation is what becomes of a connection, and why.
type Explanation struct {
	nft.TraceResult
	// Service is the frontend that the connection is addressed to; nil if it is none.
	Service *Frontend
	// Reason goes on where "is rejected", "is dropped" or "is left alone" ends; empty for
	// connections that are translated.
	Reason string
	// Facts say what decided, in the order of the packet's way.
	Facts []Fact
}

// A Fact is one reason, with what it rests on.
type Fact struct {
	Topic string `json:"topic"` // one word, two at most
	Text  string `json:"text"`
	// By is the rule or element that decides, as nft prints it, and where it is; empty where a
	// fact follows from those before.
	By string `json:"by,omitempty"`
}

// Explain traces a packet and says why it fares as it does.
func (t Table) Explain(p nft.Packet) Explanation {
	e := explainer{table: t, packet: p, Explanation: Explanation{TraceResult: t.Trace(p)}}
	e.frontend()
	if e.Service != nil {
		e.explainPolicy()
	} else {
		e.explainNone()
	}
	if len(e.Dropped) > 0 {
		e.explainDropped()
	}
	if e.Outcome == "dnat" {
		e.Reason = "" // a foreign verdict may lead to endpoints too
		e.explainEndpoints()
		e.explainMasquerade()
	}
	for _, step := range e.Foreign {
		text := "another program wrote this; explain does not know its effect and skips it"
		if e.TraceResult.Outcome == "accept" && step == e.Steps[len(e.Steps)-1] {
			text = "another program wrote this; it accepts the packet, so no Service gets the packet"
			e.Reason = "a rule or an element of another program accepts the packet"
		}
		e.add("Foreign rule", text, step.String())
	}
	return e.Explanation
}

type explainer struct {
	Explanation
	table  Table
	packet nft.Packet
}

func (e *explainer) add(topic, text, by string) {
	e.Facts = append(e.Facts, Fact{Topic: topic, Text: text, By: by})
}

// step returns the first step that an element of one of these sets decided.
func (e *explainer) step(sets ...string) *nft.Step {
	for i := range e.Steps {
		if slices.Contains(sets, e.Steps[i].Set) {
			return &e.Steps[i]
		}
	}
	return nil
}

// frontend finds the element that says what to do.
func (e *explainer) frontend() {
	step := e.step(layout.ServicesMap, layout.NodePortsMap)
	if step == nil {
		return
	}
	s := e.table.FrontendAt(step.Set, step.Key, e.table.Sets[step.Set].Map[step.Key])
	e.Service = &s
	text := fmt.Sprintf("%s %s of Service %s", s.Kind, s.Frontend, s.Name)
	if s.NodePort() {
		text = fmt.Sprintf("%s of Service %s, served at %s", s.Frontend, s.Name, e.packet.Destination)
	}
	e.add("Frontend", text, step.String())
	if annotations := s.Annotations(); len(annotations) > 0 {
		e.add("Annotations", strings.Join(annotations, ", "), "")
	}
}

// explainNone says what becomes of a connection to no frontend.
func (e *explainer) explainNone() {
	p := &e.packet
	switch {
	case e.TraceResult.Outcome == "redirect":
		names := cmp.Or(e.servicesAt(p.Destination, (*Frontend).respondsToPing), "a Service")
		e.Reason = names + " has endpoints, and responds to ping"
		e.add("Ping", fmt.Sprintf("at %s: %s; kube-nft.io/ping or --ping-vips asks for answers", p.Destination, names),
			e.step(layout.PingedSet).String())
	case e.step(layout.ClusterIPsSet) != nil:
		e.Reason = fmt.Sprintf("%s is a cluster IP, but no Service port", p.Destination)
		all := func(*Frontend) bool { return true }
		names := cmp.Or(e.servicesAt(p.Destination, all), "a Service of which no port is programmed")
		e.add("Cluster IP", fmt.Sprintf("at %s: %s", p.Destination, names), e.step(layout.ClusterIPsSet).String())
	case e.step(layout.ServiceCIDRsSet) != nil:
		e.Reason = fmt.Sprintf("no Service has %s, which is in a Service CIDR", p.Destination)
		e.add("Service CIDR", "packets to unused addresses of a Service CIDR are dropped",
			e.step(layout.ServiceCIDRsSet).String())
	case e.TraceResult.Outcome == "drop":
		e.Reason = "loopback addresses are for this node alone"
		e.add("Loopback", "connections from other hosts to loopback addresses are dropped", lastStep(e.Steps))
	default:
		e.Reason = "it is addressed to no Service"
		e.add("Frontend", "none: no element of services or node-ports is about "+e.target(), "")
		e.explainUnserved()
	}
}

func lastStep(steps []nft.Step) string {
	if len(steps) == 0 {
		return ""
	}
	return steps[len(steps)-1].String()
}

func (e *explainer) target() string {
	text := nft.AddrPortText(netip.AddrPortFrom(e.packet.Destination, e.packet.Port))
	if e.packet.Port != 0 {
		text += "/" + nft.ProtocolText(e.packet.Protocol)
	}
	return text
}

// explainUnserved says so if there is a node port of that number, but not at this address.
func (e *explainer) explainUnserved() {
	held := e.table.Sets[layout.NodePortsMap]
	key := layout.FrontendKey(netip.Addr{}, e.packet.Protocol, e.packet.Port)
	if held == nil || held.Map[key].Verdict == nil {
		return
	}
	name, element := layout.ParsePortName(held.Map[key].Comment), "element of "+layout.NodePortsMap+": "+
		held.ElementText(e.table.Family, key)
	if e.packet.Protocol == uint8(tracker.TCP) && e.table.LocalhostProxy &&
		e.packet.Destination == layout.LocalhostAddress(e.table.Family) {
		e.Reason = fmt.Sprintf("kube-nft itself listens there, and connects to an endpoint of Service %s", name)
		e.add("Node port",
			fmt.Sprintf("served by the kube-nft daemon, at %s for this node alone; endpoints see an address of this node",
				e.packet.Destination), element)
		return
	}
	e.add("Node port", fmt.Sprintf("Service %s has this node port, but node ports are not served at %s", name,
		e.packet.Destination), element)
}

// servicesAt names the Services whose frontends at an address are of a kind.
func (e *explainer) servicesAt(addr netip.Addr, ofKind func(*Frontend) bool) string {
	var names []string
	for _, s := range e.table.Frontends() {
		name := fmt.Sprintf("%s (%d/%s)", s.Name, s.Port, s.Protocol)
		if s.Address == addr && ofKind(&s) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// respondsToPing reports whether the frontend's address responds to ping because of this Service port. Without room for
// annotations in the comment it is not known, and the answer is false.
func (s *Frontend) respondsToPing() bool {
	p, _ := layout.PolicyOf(s.Verdict)
	return slices.Contains(s.Options, tracker.AnnotationPrefix+"ping: true") &&
		p.Kind != layout.Refused && p.Kind != layout.Passed
}

// explainPolicy says what the frontend's policy means for this client.
func (e *explainer) explainPolicy() {
	p, ok := layout.PolicyOf(e.Service.Verdict)
	if !ok {
		e.Reason = fmt.Sprintf("an element of another program says %q at this frontend of Service %s", e.Service.Verdict,
			e.Service.Name)
		e.add("Policy", "no kube-nft gives this verdict: "+e.Service.Verdict.String(), "")
		return
	}
	if p.SourceRanges != 0 && !e.explainSourceRanges() {
		return
	}
	switch p.Kind {
	case layout.Refused:
		e.Reason = fmt.Sprintf("Service %s has no endpoint", e.Service.Name)
		e.add("Policy", "no endpoint is ready anywhere: reject", "")
	case layout.Passed:
		e.Reason = fmt.Sprintf("Service %s has no endpoint, and the address has the ipMode Router", e.Service.Name)
		e.add("Policy", "no endpoint is ready anywhere, ipMode Router: packets pass on", "chain "+layout.PassChain)
	case layout.Dropped:
		e.Reason = fmt.Sprintf("Service %s has no endpoint on this node, and its traffic policy is Local", e.Service.Name)
		words := "traffic policy Local, and no endpoint on this node: drop, so that others are tried"
		if p.Resets {
			words += "; connections under way are reset"
		}
		e.add("Policy", words, "")
	case layout.Internal, layout.External:
		e.add("Policy", "all endpoints", "chain "+p.Open().ChainName())
	case layout.ExternalFallback:
		e.add("Policy", "external traffic policy Local, and no endpoint on this node: all endpoints, as "+
			"kube-nft.io/local-fallback: cluster asks for", "chain "+p.Open().ChainName())
	case layout.InternalLocal:
		e.add("Policy", "internal traffic policy Local: endpoints on this node alone", "chain "+p.Open().ChainName())
	case layout.ExternalLocal:
		if p.Router && e.Outcome != "dnat" {
			e.Reason = fmt.Sprintf("Service %s has no endpoint on this node, its external traffic policy is Local, and the "+
				"address has the ipMode Router", e.Service.Name)
			e.add("Policy",
				"external traffic policy Local, and no endpoint on this node, ipMode Router: packets from outside pass on",
				"chain "+p.Open().ChainName())
			return
		}
		e.explainLocal(p.Open().ChainName())
	}
	e.explainAffinity()
}

// explainSourceRanges says whether the client is in the source ranges.
func (e *explainer) explainSourceRanges() bool {
	limited := "this load balancer"
	if e.Service.NodePort() {
		limited = "its Service: they hold for the node port as well"
	}
	for _, step := range e.Steps {
		if _, node := e.firstOf(step).(nft.AddressLocal); node && step.Chain == e.Service.Verdict.Chain {
			e.add("Source", fmt.Sprintf("%s is this node, which may connect to its node ports", e.packet.Source), step.String())
			return true
		}
		if strings.HasPrefix(step.Set, layout.RangesPrefix) {
			e.add("Source", fmt.Sprintf("%s is in an allowed range", e.packet.Source), step.String())
			return true
		}
	}
	e.Reason = fmt.Sprintf("%s is in none of the source ranges of Service %s", e.packet.Source, e.Service.Name)
	e.add("Source", fmt.Sprintf("%s is in no allowed range of %s", e.packet.Source, limited), lastStep(e.Steps))
	return false
}

// explainLocal says to whom an external traffic policy Local applies.
func (e *explainer) explainLocal(chain string) {
	const local = "external traffic policy Local: "
	var by nft.Step
	for _, step := range e.Steps {
		if step.Chain == chain {
			by = step
		}
	}
	switch stmt := e.firstOf(by).(type) {
	case nft.AddressIn, nft.InputInterface:
		e.add("Policy", local+"it does not apply to pods, which get all endpoints", by.String())
	case nft.AddressLocal:
		e.add("Policy", local+"it does not apply to this node, which gets all endpoints", by.String())
	default:
		if stmt == nft.Goto(layout.DropNotLocalChain) {
			e.Reason = fmt.Sprintf("Service %s has no endpoint on this node, and its external traffic policy is Local",
				e.Service.Name)
			e.add("Policy", local+"clients outside get endpoints on this node, and there is none", by.String())
			return
		}
		e.add("Policy", local+"clients outside get endpoints on this node alone", by.String())
	}
}

// ruleOf returns the rule that a step stands for; nil for the zero Step.
func (e *explainer) ruleOf(s nft.Step) nft.Rule {
	if chain := e.table.Chains[s.Chain]; chain != nil {
		return chain.Rules[s.Index]
	}
	return nil
}

// firstOf returns the first statement of the rule that a step stands for; nil if the rule is empty.
func (e *explainer) firstOf(s nft.Step) nft.Stmt {
	if rule := e.ruleOf(s); len(rule) > 0 {
		return rule[0]
	}
	return nil
}

// explainAffinity says whether the client has an affinity entry.
func (e *explainer) explainAffinity() {
	s := e.Service
	if s.Affinity == 0 || e.Outcome != "dnat" && len(e.Dropped) == 0 {
		return
	}
	if entry := e.entry(); entry != nil {
		e.add("Affinity", fmt.Sprintf("%s has an entry", e.packet.Source), entry.String())
		return
	}
	e.add("Affinity", fmt.Sprintf("%s has no entry yet; its first connection makes one, for %s", e.packet.Source,
		nft.DurationText(s.Affinity)), "")
}

// entry returns the step that follows the client's affinity entry; nil if there is none.
func (e *explainer) entry() *nft.Step {
	for i := range e.Steps {
		if held := e.table.Sets[e.Steps[i].Set]; held != nil && held.Set.Dynamic {
			return &e.Steps[i]
		}
	}
	return nil
}

// explainDropped says why connections to some endpoints are dropped, although they are translated.
func (e *explainer) explainDropped() {
	endpoints, by := strings.Join(words.Strings(e.Dropped), ", "), ""
	for _, step := range e.Steps {
		if last(e.ruleOf(step)) == nft.Stmt(nft.Drop) {
			by = step.String()
		}
	}
	e.Reason = "a rule drops connections to " + endpoints
	if e.entry() != nil {
		e.Reason = fmt.Sprintf("the client's affinity entry names %s, which has left Service %s; the packet removes the "+
			"entry, and the next one goes elsewhere", endpoints, e.Service.Name)
	}
	e.add("Dropped", "connections to "+endpoints, by)
}
