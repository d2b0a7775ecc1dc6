package legacy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/words"
)

// An Action is a line of a plan: a thing that exists, its meaning, and what a takeover does with
// it.
type Action struct {
	Where  string `json:"where"`  // backend, family and table
	Object string `json:"object"` // "4 chains KUBE-SEP-*"
	Means  string `json:"means"`
	Will   string `json:"will"` // "removed", "kept", or what to do by hand
}

// fill sets what the part contains and what a removal does with it.
func (p *Part) fill(rs ruleset, f nft.Family, s scope) {
	p.Frontends = rs.frontends(f)
	p.NodePortsAt, p.Everywhere = rs.nodePortsAt()
	if s.endpoints {
		newChainReader(rs.chains).fill(p.Frontends)
	}
	if s.served() {
		return
	}
	gone := newRemoval(rs)
	p.ClientLists = rs.clientLists(p.Frontends)
	for _, c := range rs.chains {
		f, ours := gone.actions[c.name]
		switch {
		case ours && f == deleteChain:
			p.Chains = append(p.Chains, c.name)
		case ours && f == emptyChain:
			p.Emptied = append(p.Emptied, c.name)
		case ours, classify(rs.table, c.name) == kubelet:
			p.Kept = append(p.Kept, c.name)
		}
	}
	p.Jumps, p.Blocked, p.Rules, p.Foreign = gone.jumps, gone.blocked, gone.rules, gone.foreign
}

// finish derives the actions and turns nil lists into empty ones, for JSON.
func (p *Part) finish() {
	p.Chains, p.Emptied, p.Kept = orEmpty(p.Chains), orEmpty(p.Emptied), orEmpty(p.Kept)
	p.Jumps, p.Blocked = orEmpty(p.Jumps), orEmpty(p.Blocked)
	p.Actions = []Action{}
	switch {
	case p.Needs != "":
		p.add("everything here", "could not be read", "needs "+p.Needs)
	case p.Backend == ProxyTables:
		elements := 0
		for _, s := range p.Sets {
			elements += s.Elements
		}
		p.add(fmt.Sprintf("%s, %s, %s, %s", words.Plural(len(p.Chains), "chain"), words.Plural(p.Rules, "rule"),
			words.Plural(len(p.Sets), "set"), words.Plural(elements, "element")),
			"all of kube-proxy's nftables mode", "removed with the table")
	case p.Backend == IPVS:
		p.addServerActions()
		if p.Device != "" {
			p.add("device "+p.Device, "holds the addresses of Services", "removed with the virtual servers")
		}
		for _, s := range p.Sets {
			will := "removed"
			if s.References > 0 {
				will = "removed as soon as no rule uses it"
			}
			p.add(fmt.Sprintf("ipset %s, %s", s.Name, words.Plural(s.Elements, "element")), "kube-proxy's IPVS mode", will)
		}
	default:
		p.addIPTables()
	}
}

// shownServers is how many virtual servers of others a plan names.
const shownServers = 10

// addServerActions describes virtual servers.
func (p *Part) addServerActions() {
	for _, s := range p.Servers {
		p.add(fmt.Sprintf("virtual server %s %s", s.Protocol, s.Frontend),
			"answers for a Service, has "+words.Plural(s.Connections, "connection"),
			"removed when none of kube-proxy's has a connection")
	}
	for _, s := range p.OtherServers[:min(len(p.OtherServers), shownServers)] {
		p.add(fmt.Sprintf("virtual server %s %s", s.Protocol, s.Frontend),
			"neither at an address of kube-ipvs0 nor a node port of kube-proxy's",
			"kept; if nothing needs it, remove it with "+s.command())
	}
	if more := len(p.OtherServers) - shownServers; more > 0 {
		p.add(words.Plural(more, "further virtual server"), "as the last one", "kept")
	}
}

// addIPTables describes an iptables table in the order of removal, jumps first. It counts chains of
// Services by their prefix.
func (p *Part) addIPTables() {
	for _, j := range p.Jumps {
		p.add(j.String(), "sends packets to kube-proxy's rules", "removed")
	}
	counts := map[string]int{}
	for _, name := range p.Chains {
		counts[perService.ReplaceAllString(name, "$1*")]++
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		object, means := "chain "+name, proxyChains[name]
		switch {
		case strings.HasSuffix(name, "*"):
			object = words.Plural(counts[name], "chain") + " " + name
			means = cmp.Or(means, "a Service port each")
		case p.Table == "filter":
			means = cmp.Or(means, "may reject or drop packets of Services")
		}
		p.add(object, cmp.Or(means, "Services"), "removed")
	}
	for _, name := range p.Emptied {
		p.add("chain "+name, "kube-proxy's, but a foreign rule jumps to it", "kept without its rules")
	}
	for _, j := range p.Blocked {
		p.add(j.String(), "a foreign rule that relies on kube-proxy", "kept; remove or replace it yourself")
	}
	for _, name := range p.Kept {
		p.add("chain "+name, cmp.Or(keptChains[name], "the kubelet's"), "kept")
	}
	if p.Foreign > 0 {
		p.add(words.Plural(p.Foreign, "rule"), "foreign or the kubelet's", "kept")
	}
}

// proxyChains says what kube-proxy's chains do, where the name shows it.
var proxyChains = map[string]string{
	"KUBE-SEP-*":        "an endpoint each",
	"KUBE-PROXY-CANARY": "kube-proxy uses it to notice flushed rules",
	"KUBE-MARK-MASQ":    "masquerading",
	"KUBE-POSTROUTING":  "masquerading",
}

// keptChains says what a chain is that stays although its name begins with KUBE-.
var keptChains = map[string]string{
	"KUBE-FIREWALL":       "the kubelet's protection of loopback addresses",
	"KUBE-KUBELET-CANARY": "the kubelet uses it to notice flushed rules",
	"KUBE-IPTABLES-HINT":  "shows which iptables the kubelet uses",
	"KUBE-MARK-MASQ":      "kube-proxy's, but foreign rules use it to request masquerading",
}

// add appends an action.
func (p *Part) add(object, means, will string) {
	p.Actions = append(p.Actions, Action{p.Name(), object, means, will})
}

// orEmpty returns list, but never nil.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
