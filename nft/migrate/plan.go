package migrate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft/legacy"
)

// A Plan is what a migration finds on a node and what it will do. Its JSON form is for
// programs that review it.
type Plan struct {
	// Ready says that nothing stands in the way; see the checks that block. A live
	// kube-proxy does not block: a takeover waits for it to end.
	Ready     bool             `json:"ready"`
	Inventory legacy.Inventory `json:"inventory"`
	Checks    []Check          `json:"checks"`
	Steps     []string         `json:"steps"` // what migrate apply will do, in order
}

// NewPlan puts together what was found.
func NewPlan(inventory legacy.Inventory, checks []Check) Plan {
	checks = append([]Check{liveCheck(inventory.Processes)}, checks...)
	checks = append(checks, forwardChecks(inventory.Parts)...)
	blocks := func(c Check) bool { return c.Level == Blocks }
	return Plan{
		Ready:     !slices.ContainsFunc(checks, blocks),
		Inventory: inventory,
		Checks:    checks,
		Steps:     steps(&inventory),
	}
}

// steps describes a takeover of what was found.
func steps(inv *legacy.Inventory) (list []string) {
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if len(inv.Processes) > 0 {
		add("wait until kube-proxy has ended; stop it first")
	}
	tables := dirty(inv, legacy.Compat, legacy.ProxyTables)
	if len(tables) == 0 {
		add("commit the tables ip kube-nft and ip6 kube-nft, if they are not there already")
	} else {
		add("commit the tables ip kube-nft and ip6 kube-nft and, in the same transaction, remove what kube-proxy has in nf_tables that refuses packets")
	}
	add("verify: read our tables back, look up every frontend in the kernel")
	for _, table := range legacyTables {
		if parts := dirtyTables(inv, table); len(parts) > 0 {
			add("remove kube-proxy's from %s, each by one atomic replacement", strings.Join(parts, ", "))
		}
	}
	if len(tables) > 0 {
		add("remove kube-proxy's from %s, in one transaction", strings.Join(tables, ", "))
	}
	if len(dirty(inv, legacy.IPVS)) > 0 {
		add("remove the device and the ipsets of kube-proxy's IPVS mode")
	}
	add("look again: nothing of kube-proxy's may be left")
	return list
}

// legacyTables are the tables of the legacy ip_tables in the order in which they are
// cleaned: those that can refuse a connection first.
var legacyTables = [...]string{"filter", "nat", "mangle"}

// dirty names the parts of the backends that are to be changed.
func dirty(inv *legacy.Inventory, backends ...legacy.Backend) (names []string) {
	for i := range inv.Parts {
		if p := &inv.Parts[i]; slices.Contains(backends, p.Backend) && !p.Clean() && p.Needs == "" {
			names = append(names, partName(p))
		}
	}
	return names
}

// dirtyTables names the parts of the legacy ip_tables of one name that are to be changed.
func dirtyTables(inv *legacy.Inventory, table string) (names []string) {
	for i := range inv.Parts {
		if p := &inv.Parts[i]; p.Backend == legacy.Xtables && p.Table == table && !p.Clean() && p.Needs == "" {
			names = append(names, partName(p))
		}
	}
	return names
}

// partName says where a part is.
func partName(p *legacy.Part) string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s %s", p.Backend, p.Family, p.Table)), " ")
}
