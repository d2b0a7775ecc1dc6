package legacy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// An Action is a line of a plan: a thing that is there, what it means and what will be
// done about it.
type Action struct {
	Where  string `json:"where"`  // backend, family and table
	Object string `json:"object"` // "4 chains KUBE-SEP-*"
	Means  string `json:"means"`
	Will   string `json:"will"` // "removed", "kept", or what is to be done by hand
}

// String returns the action as a line for an operator.
func (a Action) String() string {
	return fmt.Sprintf("%s: %s (%s): %s", a.Where, a.Object, a.Means, a.Will)
}

// fill sets what the part contains from a removal and the ruleset that it is for.
func (p *Part) fill(rs ruleset, r removal) {
	for _, c := range rs.chains {
		if c.drops {
			p.Drops = append(p.Drops, c.name)
		}
		f, ours := r.fates[c.name]
		switch {
		case ours && f == leaves:
			p.Chains = append(p.Chains, c.name)
		case ours && f == empties:
			p.Emptied = append(p.Emptied, c.name)
		case ours, Classify(rs.table, c.name) == Kubelet:
			p.Kept = append(p.Kept, c.name)
		}
	}
	p.Jumps, p.Blocked, p.Rules, p.Foreign = r.jumps, r.blocked, r.rules, r.foreign
}

// finish derives the actions and makes empty lists empty lists in JSON.
func (p *Part) finish() {
	p.Chains, p.Emptied, p.Kept = orEmpty(p.Chains), orEmpty(p.Emptied), orEmpty(p.Kept)
	p.Jumps, p.Blocked = orEmpty(p.Jumps), orEmpty(p.Blocked)
	p.Actions = []Action{}
	switch {
	case p.Needs != "":
		p.add("everything here", "could not be read", "needs "+p.Needs)
	case p.Backend == ProxyTables:
		p.addProxyTable()
	case p.Backend == IPVS:
		p.addIPVS()
	default:
		p.addTable()
	}
}

// orEmpty returns list, but never nil.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// add appends an action.
func (p *Part) add(object, means, will string) {
	p.Actions = append(p.Actions, Action{p.name(), object, means, will})
}

// addTable describes an iptables table, jumps first, which is the order of removal.
func (p *Part) addTable() {
	for _, j := range p.Jumps {
		p.add(j.String(), "sends packets to kube-proxy's rules", "removed")
	}
	for _, g := range group(p.Chains) {
		p.add(g.String(), g.means(p.Table), "removed")
	}
	for _, name := range p.Emptied {
		p.add("chain "+name, "kube-proxy's, but a foreign rule sends to it", "kept without its rules")
	}
	for _, j := range p.Blocked {
		p.add(j.String(), "a foreign rule that relies on kube-proxy", "kept; remove or replace it yourself")
	}
	for _, name := range p.Kept {
		p.add("chain "+name, keptMeans(name), "kept")
	}
	if p.Foreign > 0 {
		p.add(count(p.Foreign, "rule"), "foreign or the kubelet's", "kept")
	}
}

// addProxyTable describes a table of kube-proxy's nftables mode.
func (p *Part) addProxyTable() {
	elements := 0
	for _, s := range p.Sets {
		elements += s.Elements
	}
	p.add(fmt.Sprintf("%s, %s, %s, %s", count(len(p.Chains), "chain"), count(p.Rules, "rule"),
		count(len(p.Sets), "set"), count(elements, "element")),
		"all of kube-proxy's nftables mode", "removed with the table")
}

// addIPVS describes what is left of the IPVS mode.
func (p *Part) addIPVS() {
	for _, s := range p.Servers {
		p.add(fmt.Sprintf("virtual server %s %s", s.Protocol, s.Frontend),
			"answers for a Service", "kept; remove it with "+s.command())
	}
	if p.Device != "" {
		p.add("device "+p.Device, "holds the addresses of Services", "removed")
	}
	for _, s := range p.Sets {
		will := "removed"
		if s.References > 0 {
			will = "removed as soon as no rule uses it"
		}
		p.add(fmt.Sprintf("ipset %s, %s", s.Name, count(s.Elements, "element")), "kube-proxy's IPVS mode", will)
	}
}

// keptMeans says what a chain is that stays although its name begins with KUBE-.
func keptMeans(name string) string {
	switch name {
	case "KUBE-FIREWALL":
		return "the kubelet's protection of loopback addresses"
	case "KUBE-KUBELET-CANARY":
		return "the kubelet notices by it that rules were flushed"
	case "KUBE-IPTABLES-HINT":
		return "tells others which iptables the kubelet uses"
	case "KUBE-MARK-MASQ":
		return "kube-proxy's, but foreign rules ask for masquerading by it"
	}
	return "the kubelet's"
}

// A chainGroup is a number of chains that mean the same.
type chainGroup struct {
	name  string // of the one chain; of many a prefix and a star
	count int
}

// String names the chains.
func (g chainGroup) String() string {
	if strings.HasSuffix(g.name, "*") {
		return count(g.count, "chain") + " " + g.name
	}
	return "chain " + g.name
}

// means says what the chains do.
func (g chainGroup) means(table string) string {
	switch strings.TrimSuffix(g.name, "*") {
	case "KUBE-SEP-":
		return "an endpoint each"
	case "KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-XLB-", "KUBE-FW-":
		return "a Service port each"
	case "KUBE-PROXY-CANARY":
		return "kube-proxy notices by it that rules were flushed"
	case "KUBE-MARK-MASQ", "KUBE-POSTROUTING":
		return "masquerading"
	}
	if refuses(table, g.name) {
		return "may reject or drop packets of Services"
	}
	return "Services"
}

// group puts chains of Services under their prefix and sorts by name.
func group(chains []string) []chainGroup {
	counts := map[string]int{}
	for _, name := range chains {
		counts[groupName(name)]++
	}
	var groups []chainGroup
	for name, n := range counts {
		groups = append(groups, chainGroup{name, n})
	}
	slices.SortFunc(groups, func(a, b chainGroup) int { return cmp.Compare(a.name, b.name) })
	return groups
}

// groupName returns the group of a chain.
func groupName(chain string) string {
	if isPerService(chain) {
		return chain[:len(chain)-16] + "*"
	}
	return chain
}

// count returns a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
