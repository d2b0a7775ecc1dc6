package legacy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// A ruleset is the part of one iptables table that matters here, in either backend.
type ruleset struct {
	table  string
	chains []chain
}

// A chain holds its rules in order. Names are unique within a table.
type chain struct {
	name  string
	base  bool
	rules []rule
	// elsewhere says that something other than a rule leads to the chain: with nf_tables, an element
	// of a verdict map. Such a chain cannot be deleted.
	elsewhere bool
}

// A rule is known by its target and, for the reader, by its comment.
type rule struct {
	target  string // the chain it jumps or goes to; empty for any other verdict
	comment string
	// plain says that the rule has no condition but a connection state.
	plain bool
	// What it asks of a packet's destination.
	to       netip.Addr     // a single address; the zero Addr if the rule takes others as well
	protocol uint8          // 0: any
	port     uint16         // 0: any, or more than one
	recent   string         // the list of clients of session affinity; empty without
	endpoint netip.AddrPort // to which the rule translates; the zero value if it does not
	chooses  string         // the map in nf_tables from which the rule takes its endpoint or its chain
}

// A Jump is a rule that leads to one of kube-proxy's chains.
type Jump struct {
	Chain   string `json:"chain"`
	Rule    int    `json:"rule"` // its number in the chain as iptables counts, from 1; of an element, 0
	Target  string `json:"target"`
	Comment string `json:"comment,omitempty"`
}

// String names the rule for an operator.
func (j Jump) String() string {
	if j.Rule == 0 {
		return "an element of a verdict map, to " + j.Target
	}
	s := fmt.Sprintf("%s rule %d to %s", j.Chain, j.Rule, j.Target)
	if j.Comment != "" {
		s += fmt.Sprintf(" (%q)", j.Comment)
	}
	return s
}

// A chainAction is what becomes of a chain.
type chainAction uint8

const (
	keepChain chainAction = iota // its rules stay, except kube-proxy's jumps
	deleteChain
	emptyChain // kube-proxy's, but foreign rules lead to it: kept without its rules
)

// A removal says how to remove kube-proxy's share from a ruleset and leave the rest.
type removal struct {
	actions map[string]chainAction // of kube-proxy's chains; all others keep
	jumps   []Jump                 // rules to delete from chains that keep, in the ruleset's order
	blocked []Jump                 // foreign rules that keep a chain of kube-proxy's in place
	foreign int                    // rules that are not kube-proxy's
	rules   int                    // rules inside kube-proxy's chains that go
}

// newRemoval decides for every chain and rule of rs. It changes nothing.
func newRemoval(rs ruleset) removal {
	r := removal{actions: map[string]chainAction{}}
	for _, c := range rs.chains {
		if classify(rs.table, c.name) == kubeProxy && !c.base {
			r.actions[c.name] = deleteChain
		}
	}
	for _, c := range rs.chains {
		if _, ours := r.actions[c.name]; ours {
			if c.elsewhere {
				r.blocked = append(r.blocked, Jump{Target: c.name})
			}
			continue
		}
		for i, rule := range c.rules {
			_, sends := r.actions[rule.target]
			jump := Jump{Chain: c.name, Rule: i + 1, Target: rule.target, Comment: rule.comment}
			if sends && c.base && rule.plain && fixed[rs.table+" "+rule.target] {
				r.jumps = append(r.jumps, jump)
				continue
			}
			if sends {
				r.blocked = append(r.blocked, jump)
			}
			r.foreign++
		}
	}
	for _, j := range r.blocked {
		r.actions[j.Target] = emptyChain
	}
	sends := func(r rule) bool { return r.target != "" }
	for _, c := range rs.chains {
		// The chain may keep its rules: a foreign rule uses it to request masquerading.
		if r.actions[c.name] == emptyChain && c.name == "KUBE-MARK-MASQ" && !slices.ContainsFunc(c.rules, sends) {
			r.actions[c.name] = keepChain
		}
		if r.actions[c.name] != keepChain {
			r.rules += len(c.rules)
		}
	}
	return r
}

// deletes returns the indexes of the rules to delete from a chain that stays.
func (r *removal) deletes(chain string) map[int]bool {
	rules := map[int]bool{}
	for _, j := range r.jumps {
		if j.Chain == chain {
			rules[j.Rule-1] = true
		}
	}
	return rules
}

// empty reports whether the removal changes nothing.
func (r *removal) empty() bool {
	return len(r.jumps)+r.rules == 0 && !slices.Contains(slices.Collect(maps.Values(r.actions)), deleteChain)
}
