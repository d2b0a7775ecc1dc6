package legacy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// An Inventory is all that kube-proxy has on a node, and what keeps it there.
type Inventory struct {
	Parts     []Part    `json:"parts"`
	Processes []Process `json:"processes"`
}

// A Part is one table of a backend, or all of IPVS. Tables without anything of kube-proxy's
// are parts too: they say what is foreign. Tables that do not exist are not.
type Part struct {
	Backend Backend `json:"backend"`
	Family  string  `json:"family,omitempty"` // ip or ip6; empty for IPVS
	Table   string  `json:"table,omitempty"`

	Chains  []string `json:"chains"`  // to be removed
	Emptied []string `json:"emptied"` // chains of kube-proxy's that must stay, but without rules
	Kept    []string `json:"kept"`    // the kubelet's, and KUBE-MARK-MASQ if it is in use
	Rules   int      `json:"rules"`   // inside the chains to be removed or emptied
	Jumps   []Jump   `json:"jumps"`   // to be removed from chains that stay
	Blocked []Jump   `json:"blocked"` // foreign rules for which chains of kube-proxy's stay
	Foreign int      `json:"foreignRules"`
	// Drops are the base chains that drop what no rule accepts.
	Drops []string `json:"drops,omitempty"`

	Sets    []Set    `json:"sets,omitempty"`    // of an nf_tables table, or ipsets
	Device  string   `json:"device,omitempty"`  // kube-ipvs0
	Servers []Server `json:"servers,omitempty"` // virtual servers on the device's addresses

	// Needs is what kube-nft lacks to look at the part, such as a capability.
	Needs   string   `json:"needs,omitempty"`
	Actions []Action `json:"actions"`
}

// Clean reports whether nothing of the part is to be changed.
func (p *Part) Clean() bool {
	return len(p.Chains)+p.Rules+len(p.Jumps)+len(p.Servers) == 0 && p.Device == "" && p.Needs == "" &&
		p.Backend != ProxyTables && !slices.ContainsFunc(p.Sets, func(s Set) bool { return s.References == 0 })
}

// name says where the part is, for messages.
func (p *Part) name() string {
	if p.Table == "" {
		return string(p.Backend)
	}
	return fmt.Sprintf("%s %s %s", p.Backend, p.Family, p.Table)
}

// Clean reports whether there is nothing left to remove. It says nothing of processes.
func (i *Inventory) Clean() bool {
	return !slices.ContainsFunc(i.Parts, func(p Part) bool { return !p.Clean() })
}

// Plan returns the actions of all parts in the order of the inventory.
func (i *Inventory) Plan() []Action {
	var plan []Action
	for _, p := range i.Parts {
		plan = append(plan, p.Actions...)
	}
	return plan
}

// A Node is where to look. The zero value is the node that the caller's namespaces show.
type Node struct {
	Proc string // a proc file system with the node's processes; empty: /proc
	Lock string // the lock of the iptables programs; empty: LockFile
}

// Take looks everywhere and changes nothing. What needs a privilege that the caller lacks
// says so in its Part; any other failure is in the error, beside what could be read.
func (n Node) Take(ctx context.Context) (Inventory, error) {
	var inv Inventory
	var failures []error
	for _, look := range []func(context.Context) ([]Part, error){takeXtables, takeNFTables, takeIPVS} {
		parts, err := look(ctx)
		inv.Parts = append(inv.Parts, parts...)
		failures = append(failures, err)
	}
	var err error
	inv.Processes, err = Processes(cmp.Or(n.Proc, "/proc"))
	failures = append(failures, err)
	for i := range inv.Parts {
		inv.Parts[i].finish()
	}
	inv.Parts, inv.Processes = orEmpty(inv.Parts), orEmpty(inv.Processes)
	return inv, errors.Join(failures...)
}

// Remove takes kube-proxy's state out of what sel selects and leaves all else as it is.
// After an error in one table or backend it goes on with the others; each is changed at
// once or not at all. The order is: filter, nat and mangle of Xtables, nf_tables, IPVS.
func (n Node) Remove(ctx context.Context, sel Selector) error {
	var failures []error
	if sel.takes(Xtables) {
		failures = append(failures, removeXtables(ctx, sel, cmp.Or(n.Lock, LockFile)))
	}
	if sel.takes(Compat) || sel.takes(ProxyTables) {
		failures = append(failures, explain(cleanNFTables(ctx, sel)))
	}
	if sel.takes(IPVS) {
		failures = append(failures, explain(deleteDevice()), explain(destroySets(ctx)))
	}
	return errors.Join(failures...)
}

// takeXtables reads the tables of ip_tables and ip6_tables that exist.
func takeXtables(context.Context) (parts []Part, err error) {
	for _, f := range nft.Families {
		list, familyErr := takeXtablesOf(f)
		if missing := needs(familyErr); missing != "" {
			list, familyErr = []Part{{Backend: Xtables, Family: f.String(), Needs: missing}}, nil
		}
		parts = append(parts, list...)
		err = errors.Join(err, familyErr)
	}
	return parts, err
}

// takeXtablesOf reads the tables of one family.
func takeXtablesOf(f nft.Family) (parts []Part, err error) {
	tables, err := xtablesTables(f)
	if err != nil || len(tables) == 0 {
		return nil, err
	}
	s, err := openSocket(f)
	if err != nil {
		return nil, err
	}
	defer s.close()
	for _, table := range tables {
		part := Part{Backend: Xtables, Family: f.String(), Table: table}
		x, err := s.read(table)
		if err != nil {
			return parts, fmt.Errorf("%s: %w", part.name(), err)
		}
		rs := x.rules.ruleset(table)
		part.fill(rs, newRemoval(rs))
		parts = append(parts, part)
	}
	return parts, nil
}

// removeXtables cleans the selected tables of ip_tables and ip6_tables.
func removeXtables(ctx context.Context, sel Selector, lockFile string) (err error) {
	for _, f := range nft.Families {
		if !sel.takesFamily(Xtables, f) {
			continue
		}
		err = errors.Join(err, explain(removeXtablesOf(ctx, f, sel, lockFile)))
	}
	return err
}

// removeXtablesOf cleans the selected tables of one family under the lock.
func removeXtablesOf(ctx context.Context, f nft.Family, sel Selector, lockFile string) error {
	tables, err := xtablesTables(f)
	if err != nil || len(tables) == 0 {
		return err
	}
	release, err := lock(ctx, lockFile)
	if err != nil {
		return err
	}
	defer release()
	s, err := openSocket(f)
	if err != nil {
		return err
	}
	defer s.close()
	for _, table := range tables {
		if !sel.takesTable(Xtables, f, table) {
			continue
		}
		if tableErr := s.clean(ctx, table); tableErr != nil {
			err = errors.Join(err, fmt.Errorf("%s %s %s: %w", Xtables, f, table, tableErr))
		}
	}
	return err
}

// takeNFTables reads both nf_tables backends.
func takeNFTables(ctx context.Context) (parts []Part, err error) {
	c, err := dialNetfilter()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	tables, _, err := readNFTables(ctx, c)
	if missing := needs(err); missing != "" {
		return []Part{{Backend: Compat, Needs: missing}, {Backend: ProxyTables, Needs: missing}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nf_tables: %w", err)
	}
	for _, t := range tables {
		parts = append(parts, t.part())
	}
	slices.SortStableFunc(parts, func(a, b Part) int { return cmp.Compare(rank(a), rank(b)) })
	return parts, nil
}

// rank puts nft-compat before kube-proxy's own tables.
func rank(p Part) int {
	return slices.Index([]Backend{Xtables, Compat, ProxyTables, IPVS}, p.Backend)
}

// part returns the table as a part of an inventory.
func (t *nfTable) part() Part {
	p := Part{Backend: t.backend(), Family: t.family.String(), Table: t.name}
	if p.Backend == Compat {
		p.fill(t.rules, newRemoval(t.rules))
		return p
	}
	for _, c := range t.rules.chains {
		p.Chains = append(p.Chains, c.name)
	}
	p.Rules, p.Sets = t.count, t.sets
	return p
}

// takeIPVS reads what the IPVS mode has beside chains; no part if there is nothing.
func takeIPVS(context.Context) ([]Part, error) {
	p := Part{Backend: IPVS}
	link, addrs, err := findDevice()
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", Device, err)
	}
	if link != nil {
		p.Device = Device
		if p.Servers, err = readServers(addrs); err != nil && needs(err) == "" {
			return nil, fmt.Errorf("virtual servers: %w", err)
		}
	}
	sets, setErr := readSets()
	p.Sets, p.Needs = sets, cmp.Or(needs(err), needs(setErr))
	if setErr != nil && p.Needs == "" {
		return nil, fmt.Errorf("ipsets: %w", setErr)
	}
	if p.Device == "" && len(p.Sets) == 0 && p.Needs == "" {
		return nil, nil
	}
	return []Part{p}, nil
}

// needs returns what the caller lacks if err says that it lacks something.
func needs(err error) string {
	if errors.Is(err, unix.EPERM) || errors.Is(err, fs.ErrPermission) {
		return "CAP_NET_ADMIN and CAP_NET_RAW, in the node's network namespace"
	}
	return ""
}

// explain adds to a refusal what would lift it.
func explain(err error) error {
	if missing := needs(err); missing != "" {
		return fmt.Errorf("%w; needs %s", err, missing)
	}
	return err
}

// Serves reports whether the part sends connections in family f to endpoints of Services,
// so that the node can do with kube-proxy's rules alone.
func (p *Part) Serves(f nft.Family) bool {
	if p.Backend == IPVS {
		return slices.ContainsFunc(p.Servers, func(s Server) bool { return s.Frontend.Addr().Is6() == (f == nft.IP6) })
	}
	if p.Family != f.String() {
		return false
	}
	if p.Backend == ProxyTables {
		return slices.ContainsFunc(p.Sets, func(s Set) bool { return s.Name == "service-ips" && s.Elements > 0 })
	}
	toServices := func(j Jump) bool { return j.Chain == "PREROUTING" && j.Target == "KUBE-SERVICES" }
	return p.Table == "nat" && slices.ContainsFunc(p.Jumps, toServices) && slices.ContainsFunc(p.Chains, isPerService)
}
