package inspect

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/firewall"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
)

// targets are some of the endpoints that the tables lead to, and the mark of masqueraded packets.
func (i *inspection) targets() (list []firewall.Target, mark uint32) {
	for _, table := range i.tables {
		mark = table.MasqueradeMark()
		for _, s := range table.Frontends() {
			p, _ := layout.PolicyOf(s.Verdict)
			endpoints, outside := s.Cluster, s.Kind != readback.KindClusterIP
			kept := p.Open().Kind == layout.ExternalLocal
			if kept || p.Open().Kind == layout.InternalLocal {
				endpoints = s.Local
			}
			for n, ep := range endpoints.All() {
				if firewall.Sampled(n, endpoints.Len()) {
					list = append(list, firewall.Target{Endpoint: ep, Protocol: uint8(s.Protocol), Outside: outside, Kept: kept})
				}
			}
		}
	}
	return list, mark
}

// maxTried is how many endpoints of a frontend are tried.
const maxTried = 16

// besides are facts about the connection that do not stand in our tables: what sees the packet before
// them, and what refuses it behind them.
func (i *inspection) besides(ctx context.Context, table *readback.Table, p nft.Packet,
	e *readback.Explanation) (facts []readback.Fact) {
	rules, err := firewall.Read(ctx, i.kernel)
	if err != nil {
		return []readback.Fact{{Topic: "Other rules", Text: "not known: " + err.Error()}}
	}
	first := firewall.Packet{Family: table.Family, Source: p.Source, Destination: p.Destination, SourcePort: p.SourcePort,
		DestinationPort: p.Port, Protocol: p.Protocol, State: firewall.StateNew}
	hook, chain := uint32(unix.NF_INET_PRE_ROUTING), layout.PreroutingChain
	if p.SourceLocal {
		hook, chain = unix.NF_INET_LOCAL_OUT, layout.OutputChain
	} else if first.In = p.Interface; p.Interface == unknownInterface {
		first.In = firewall.DeviceTo(p.Source)
	}
	priority := int32(0)
	if c := table.Chains[chain]; c != nil && c.Hook != nil {
		priority = int32(c.Hook.Priority)
	}
	ahead, err := rules.Ahead(ctx, first, hook, priority)
	for _, n := range ahead {
		facts = append(facts, readback.Fact{Topic: "Ahead of us", Text: n.String()})
	}
	if err != nil {
		facts = append(facts, readback.Fact{Topic: "Ahead of us", Text: "not known: " + err.Error()})
	}
	if e.Outcome != "dnat" {
		return facts
	}
	return append(facts, refusalFacts(ctx, rules, first, p.SourceLocal, table.MasqueradeMark(), e)...)
}

// refusalFacts say what refuses the connection on its way to endpoints. own says that it is this node's.
func refusalFacts(ctx context.Context, rules *firewall.Firewall, p firewall.Packet, own bool, mark uint32,
	e *readback.Explanation) (facts []readback.Fact) {
	forwarded, tried := 0, e.Endpoints[:min(len(e.Endpoints), maxTried)]
	refused := make(map[string][]string) // endpoints by what refuses them
	var blockers []*firewall.Blocker     // one for each of these
	for _, ep := range tried {
		hook, to := uint32(unix.NF_INET_FORWARD), p.Translated(ep)
		if e.Masquerade {
			to.Mark = mark
		}
		switch {
		case own:
			hook = unix.NF_INET_LOCAL_OUT
		case !firewall.Forwarded(ep.Addr()):
			hook = unix.NF_INET_LOCAL_IN
		default:
			forwarded++
		}
		blocker, err := rules.Refuses(ctx, hook, to)
		if err != nil {
			return append(facts, readback.Fact{Topic: "Firewall", Text: "not known: " + err.Error()})
		}
		if blocker == nil {
			continue
		}
		text := blocker.String()
		if refused[text] == nil {
			blockers = append(blockers, blocker)
		}
		refused[text] = append(refused[text], ep.String())
	}
	if name := firewall.ForwardingOff(p.Family); name != "" && forwarded > 0 {
		facts = append(facts, readback.Fact{Topic: "Forwarding", Text: "this node forwards no packet: " + name + " is 0",
			By: "remedy: sysctl -w " + name + "=1"})
	}
	for _, blocker := range blockers {
		text, where := blocker.String(), "all endpoints"
		if n := len(refused[text]); n < len(tried) {
			where = fmt.Sprintf("%d of %d endpoints that were tried (%s)", n, len(tried), strings.Join(refused[text], ", "))
		}
		fact := readback.Fact{Topic: "Firewall", Text: "on the way to " + where + ", " + text}
		if blocker.General && blocker.Remedy != "" {
			fact.By = "remedy: " + blocker.Remedy
		}
		facts = append(facts, fact)
	}
	return facts
}
