package migrate

import (
	"fmt"
	"strings"

	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/words"
)

// A Plan is what a migration finds on a node and what it will do. Its JSON form is for
// programs that review it.
type Plan struct {
	// Ready says that no check blocks. A live kube-proxy does not block: a takeover waits for it to
	// end.
	Ready bool `json:"ready"`
	// Complete says that everything could be looked at.
	Complete  bool             `json:"complete"`
	Summary   string           `json:"summary"`
	Inventory legacy.Inventory `json:"inventory"`
	Checks    []Check          `json:"checks"`
	Steps     []string         `json:"steps"` // what migrate apply will do, in order
}

// NewPlan builds the plan from the inventory and the checks.
func NewPlan(inventory legacy.Inventory, checks []Check) Plan {
	checks = append([]Check{liveCheck(inventory.Processes)}, checks...)
	p := Plan{Inventory: inventory, Checks: checks, Steps: steps(&inventory)}
	counts := make(map[Level]int)
	for _, c := range checks {
		counts[c.Level]++
	}
	for _, part := range inventory.Parts {
		if part.Needs != "" {
			counts[Unknown]++
		}
	}
	p.Ready, p.Complete = counts[Blocks] == 0, counts[Unknown] == 0
	p.Summary = fmt.Sprintf("%s, %s: apply %s", words.Plural(counts[Warning], "warning"),
		words.Plural(counts[Blocks], "block"),
		p.outcome())
	if !p.Complete {
		p.Summary = words.Plural(counts[Unknown], "thing") + " could not be looked at, " + p.Summary
	}
	return p
}

// outcome says what apply would do.
func (p *Plan) outcome() string {
	switch {
	case !p.Ready:
		return "would refuse and change nothing"
	case !p.Complete:
		return "may fail there"
	case p.Inventory.Clean():
		return "would bring our tables up to date; nothing of kube-proxy's is left"
	case len(p.Inventory.Processes) > 0:
		return "would wait for kube-proxy to end, then take this node over"
	}
	return "would take this node over"
}

// steps describes the steps of a takeover of inv.
func steps(inv *legacy.Inventory) (list []string) {
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	named := func(sel legacy.Selector) string {
		names, _ := changed(inv, sel)
		return strings.Join(names, ", ")
	}
	if len(inv.Processes) > 0 {
		add("wait until kube-proxy has ended; stop it first")
	}
	if !inv.Clean() {
		add("compare kube-proxy's frontends with ours; if too many would vanish, refuse and change nothing")
	}
	tables := named(nfTables)
	if tables == "" {
		add("commit the tables ip kube-nft and ip6 kube-nft, if they are not there already")
	} else {
		add("commit the tables ip kube-nft and ip6 kube-nft and, in the same transaction, remove what kube-proxy has in " +
			"nf_tables that refuses packets")
	}
	add("verify: read our tables back, look up every frontend in the kernel")
	for _, table := range xtables {
		if parts := named(table); parts != "" {
			add("remove kube-proxy's from %s, each by one atomic replacement", parts)
		}
	}
	if tables != "" {
		add("remove kube-proxy's from %s, in one transaction", tables)
	}
	if named(ipvs) != "" {
		add("let the virtual servers of kube-proxy's IPVS mode take no new connections; remove them, the device and the " +
			"ipsets when no connection uses them, or after --takeover-drain-timeout; the daemon waits for that")
	}
	add("look again: nothing of kube-proxy's may be left")
	return list
}
