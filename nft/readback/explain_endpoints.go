package readback

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/words"
)

// explainEndpoints lists the candidates, and which of them are on this node, as far as that is
// known.
func (e *explainer) explainEndpoints() {
	chain, chosen := "", "" // chosen is the element that a hash chose
	for _, step := range e.Steps {
		if stmt, ok := last(e.ruleOf(step)).(nft.DNATFrom); ok && stmt.ToPort == 0 {
			chain = "chain " + step.Chain + ", map " + stmt.Map
			if step.Set != "" {
				chosen = step.String()
			}
		}
	}
	e.explainHash(chosen)
	names := make([]string, len(e.Endpoints))
	for i, ep := range e.Endpoints {
		names[i] = ep.String()
		if e.table.onNode(ep.Addr()) {
			names[i] += " (on this node)"
		}
		if e.Shares != nil && e.Service != nil && (e.Hash != "" || e.Service.Weighted()) {
			names[i] += fmt.Sprintf(" %.1f%%", 100*e.Shares[i])
		}
	}
	e.add("Endpoints", strings.Join(names, ", "), chain)
	if e.Holes > 0 || e.Uneven {
		e.add("Broken list", "the table is damaged: endpoints are missing, or have wrong weights",
			chain)
	}
}

// explainHash says what of the client the endpoint follows from, which an element decides.
func (e *explainer) explainHash(by string) {
	what := map[string]string{nft.HashAddress: "address", nft.HashAddressPort: "address and port"}[e.Hash]
	text := "the endpoint follows from the client's " + what + ", alike on all nodes"
	switch {
	case what == "":
	case e.Hash == nft.HashAddressPort && e.packet.SourcePort == 0:
		e.add("Hash", text+"; pass its port, as ADDR:PORT, to see which", "")
	case by != "":
		e.add("Hash", text, by)
	}
}

// onNode reports whether an endpoint is known to run on this node: those that may reach
// themselves are listed.
func (t Table) onNode(endpoint netip.Addr) bool {
	key := nft.AddrKey(endpoint)
	return t.has(layout.HairpinSet, key+key)
}

// explainMasquerade says whether the endpoint sees the client's address.
func (e *explainer) explainMasquerade() {
	if i := slices.IndexFunc(e.Steps, func(s nft.Step) bool { return s.Masquerade }); i >= 0 {
		e.add("Masquerade", "yes: "+e.whyMasquerade(e.Steps[i]), e.Steps[i].String())
		return
	}
	hairpin := e.step(layout.HairpinSet)
	switch {
	case hairpin != nil && e.Masquerade:
		e.add("Masquerade", "yes: the endpoint would connect to itself", hairpin.String())
	case hairpin != nil:
		e.add("Masquerade", "only to "+strings.Join(words.Strings(e.Hairpin), ", ")+", which would connect to itself",
			hairpin.String())
	default:
		e.add("Masquerade", "no: "+e.whyNot(), "")
	}
}

// whyMasquerade is about the rule that asks for it.
func (e *explainer) whyMasquerade(s nft.Step) string {
	p, _ := layout.PolicyOfChain(s.Chain)
	internalKind := p.Kind == layout.Internal || p.Kind == layout.InternalLocal
	switch e.firstOf(s).(type) {
	case nft.AddressIn, nft.InputInterface:
		return "the client is not recognised as a pod, and replies have to come back through this node"
	case nft.Verdict:
		if internalKind {
			return "all connections to cluster IPs are masqueraded (--masquerade-all)"
		}
	}
	return "the endpoint may be on another node, and replies have to come back through this one"
}

// whyNot is about a connection that keeps its source.
func (e *explainer) whyNot() string {
	var p layout.Policy
	if e.Service != nil {
		p, _ = layout.PolicyOf(e.Service.Verdict)
	}
	pods := e.table.Pods()
	switch {
	case !pods.None() && nft.Matches(pods.Stmt(false), e.table.Family, e.packet):
		return "the client is a pod (" + nft.Rule{pods.Stmt(false)}.Text(e.table.Family) + ")"
	case p.Kind == layout.ExternalLocal:
		return "external traffic policy Local keeps the client's address"
	}
	return "kube-nft cannot recognise pods (no cluster CIDR), so it masquerades no connection to a cluster IP"
}

// Pods returns how the table's rules recognise pods.
func (t Table) Pods() layout.PodMatch {
	for name, chain := range t.Chains {
		p, ok := layout.PolicyOfChain(name)
		if !ok || p.SourceRanges != 0 || len(chain.Rules) == 0 || len(chain.Rules[0]) == 0 {
			continue
		}
		switch stmt := chain.Rules[0][0].(type) {
		case nft.AddressIn:
			return layout.PodMatch{CIDR: stmt.Prefix}
		case nft.InputInterface:
			return layout.PodMatch{Interface: stmt.Name, Prefix: stmt.Prefix}
		}
	}
	return layout.PodMatch{}
}

// MasqueradeMark is the mark of packets that the table masquerades; 0 if no rule says so.
func (t Table) MasqueradeMark() uint32 {
	for _, rule := range t.Rules(layout.PostroutingChain) {
		for _, stmt := range rule {
			if mark, ok := stmt.(nft.MarkHas); ok {
				return mark.Bits
			}
		}
	}
	return 0
}
