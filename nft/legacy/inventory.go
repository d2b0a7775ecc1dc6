package legacy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// A Backend is a place in the kernel where kube-proxy may have left state.
type Backend string

// The backends, in the order of an inventory. Their spelling is part of its JSON form.
const (
	Xtables     Backend = "legacy"
	Compat      Backend = "nft-compat"
	ProxyTables Backend = "kube-proxy-nftables"
	IPVS        Backend = "ipvs"
)

// ProxyTable is the name of kube-proxy's own nf_tables table in each family.
const ProxyTable = "kube-proxy"

// iptablesTables are the tables that kube-proxy writes. filter comes first: leftovers there can
// refuse traffic, while those in nat only lose to a base chain of lower priority. kube-proxy does
// not write to raw and security.
var iptablesTables = [...]string{"filter", "nat", "mangle"}

// A Selector limits a removal. A nil field allows everything.
type Selector struct {
	Backends []Backend
	Families []nft.Family
	Tables   []string // filter, nat or mangle; for ProxyTables see allowsTable
}

// allows reports whether the selector allows backend b.
func (s Selector) allows(b Backend) bool { return allows(s.Backends, b) }

// allowsTable reports whether the selector allows a table of backend b in family f. In ProxyTables
// the chains at filter hooks count as filter, the rest as nat.
func (s Selector) allowsTable(b Backend, f nft.Family, table string) bool {
	return s.allows(b) && allows(s.Families, f) && allows(s.Tables, table)
}

// allows reports whether list contains v or is nil.
func allows[T comparable](list []T, v T) bool { return list == nil || slices.Contains(list, v) }

// An Inventory is all that kube-proxy has on a node, and what keeps it there.
type Inventory struct {
	Parts     []Part    `json:"parts"`
	Processes []Process `json:"processes"`
	// Endpoints says that the endpoint lists of frontends were read, too.
	Endpoints bool `json:"-"`
	// Same says that a Reader found nothing else than in its last reading. It is false where it would have to read all
	// to know: in legacy ip_tables and in IPVS.
	Same bool `json:"-"`
}

// A Part is one table of a backend, or all of IPVS. A table without anything of kube-proxy's is a
// part, too: it lists the foreign rules. A table that does not exist is no part.
type Part struct {
	Backend Backend `json:"backend"`
	Family  string  `json:"family,omitempty"` // ip or ip6; empty for IPVS
	Table   string  `json:"table,omitempty"`

	Chains  []string `json:"chains"`  // to be removed
	Emptied []string `json:"emptied"` // kube-proxy's chains that must stay, but without rules
	Kept    []string `json:"kept"`    // the kubelet's, KUBE-MARK-MASQ if it is in use, and what Keep keeps
	Rules   int      `json:"rules"`   // inside the chains to be removed or emptied
	Jumps   []Jump   `json:"jumps"`   // to be removed from chains that stay
	Blocked []Jump   `json:"blocked"` // foreign rules for which chains of kube-proxy's stay
	Foreign int      `json:"foreignRules"`

	Frontends []Frontend `json:"-"` // what leads to endpoints of Services
	// Node ports are reached at NodePortsAt, or Everywhere: at all addresses of the node.
	NodePortsAt []netip.Addr `json:"-"`
	Everywhere  bool         `json:"-"`
	// Of session affinity: entries of the nftables mode, and where the iptables mode keeps them.
	Entries     []AffinityEntry `json:"-"`
	ClientLists []ClientList    `json:"-"`

	Sets    []Set    `json:"sets,omitempty"`    // of an nf_tables table, or ipsets
	Device  string   `json:"device,omitempty"`  // kube-ipvs0
	Servers []Server `json:"servers,omitempty"` // virtual servers of Services
	// OtherServers are virtual servers of other programs.
	OtherServers []Server `json:"otherServers,omitempty"`

	// Needs is the privilege that kube-nft lacks to read the part, such as a capability.
	Needs   string   `json:"needs,omitempty"`
	Actions []Action `json:"actions"`
}

// Clean reports whether a removal changes nothing in the part.
func (p *Part) Clean() bool {
	return len(p.Chains)+p.Rules+len(p.Jumps)+len(p.Servers) == 0 && p.Device == "" && p.Needs == "" &&
		p.Backend != ProxyTables && !slices.ContainsFunc(p.Sets, func(s Set) bool { return s.References == 0 })
}

// Name says where the part is, for messages.
func (p *Part) Name() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", p.Backend, p.Family, p.Table))
}

// Clean reports whether nothing is left to remove. It does not look at processes.
func (i *Inventory) Clean() bool {
	return !slices.ContainsFunc(i.Parts, func(p Part) bool { return !p.Clean() })
}

// A Node says where to look. The zero value is the node that the caller's namespaces show.
type Node struct {
	Proc string // a proc file system with the node's processes; empty: /proc
	Lock string // the lock of the iptables programs; empty: LockFile
	// Endpoints asks Inventory for the endpoint lists of frontends as well.
	Endpoints bool
}

// A scope says how much of kube-proxy's state is read.
type scope struct {
	endpoints bool    // the endpoint lists of frontends, too
	reader    *Reader // not nil: nothing but frontends and these lists, for this Reader
}

// served reports whether frontends and their lists are all that is read.
func (s scope) served() bool { return s.reader != nil }

// Inventory looks everywhere and changes nothing. Where the caller lacks a privilege, the Part says so.
// Any other failure is in the error; Inventory reads the rest nevertheless.
func (n Node) Inventory(ctx context.Context) (Inventory, error) {
	parts, partsErr := readParts(ctx, scope{endpoints: n.Endpoints})
	processes, processesErr := Processes(cmp.Or(n.Proc, "/proc"))
	for i := range parts {
		parts[i].finish()
	}
	return Inventory{Parts: orEmpty(parts), Processes: orEmpty(processes), Endpoints: n.Endpoints},
		errors.Join(partsErr, processesErr)
}

// readParts reads all places. After an error it goes on with the others.
func readParts(ctx context.Context, s scope) (parts []Part, err error) {
	for _, look := range []func(context.Context, scope) ([]Part, error){xtablesParts, nftablesParts, ipvsParts} {
		found, lookErr := look(ctx, s)
		parts, err = append(parts, found...), errors.Join(err, lookErr)
	}
	return parts, err
}

// Remove removes kube-proxy's state from what sel selects and leaves all else as it is. After an
// error in one table or backend it goes on with the others; each changes as a whole or not at all.
// The order is: filter, nat and mangle of Xtables, nf_tables, IPVS.
func (n Node) Remove(ctx context.Context, sel Selector) error {
	var failures []error
	for _, f := range nft.Families {
		if !sel.allows(Xtables) || !allows(sel.Families, f) {
			continue
		}
		failures = append(failures, explain(eachXtable(ctx, f, iptablesTables[:], cmp.Or(n.Lock, LockFile),
			func(s *socket, table string) error {
				if !sel.allowsTable(Xtables, f, table) {
					return nil
				}
				return s.clean(ctx, table)
			})))
	}
	if sel.allows(Compat) || sel.allows(ProxyTables) {
		failures = append(failures, explain(removeNFTables(ctx, sel)))
	}
	if sel.allows(IPVS) {
		failures = append(failures, explain(removeIPVS(ctx)))
	}
	return errors.Join(failures...)
}

// xtablesParts reads the tables of ip_tables and ip6_tables that exist.
func xtablesParts(ctx context.Context, s scope) (parts []Part, err error) {
	names := iptablesTables[:]
	if s.served() {
		names = []string{"nat"}
	}
	for _, f := range nft.Families {
		family := f.NFT()
		var tables []Part
		familyErr := eachXtable(ctx, f, names, "", func(socket *socket, table string) error {
			x, err := socket.read(table)
			if err != nil {
				return err
			}
			part := Part{Backend: Xtables, Family: family, Table: table}
			part.fill(x.rules.ruleset(table), f, s)
			tables = append(tables, part)
			return nil
		})
		if missing := needs(familyErr); missing != "" {
			tables, familyErr = []Part{{Backend: Xtables, Family: family, Needs: missing}}, nil
		}
		parts = append(parts, tables...)
		err = errors.Join(err, familyErr)
	}
	return parts, err
}

// nftablesParts reads both nf_tables backends, nft-compat before kube-proxy's own tables.
func nftablesParts(ctx context.Context, s scope) ([]Part, error) {
	tables, _, err := readNFTables(ctx, s)
	if missing := needs(err); missing != "" {
		return []Part{{Backend: Compat, Needs: missing}, {Backend: ProxyTables, Needs: missing}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nf_tables: %w", err)
	}
	var compat, own []Part
	for _, t := range tables {
		p := Part{Backend: t.backend(), Family: t.family.NFT(), Table: t.rules.table}
		if p.Backend == Compat && s.served() {
			p.Frontends = t.frontends
			p.NodePortsAt, p.Everywhere = t.rules.nodePortsAt()
			compat = append(compat, p)
			continue
		}
		if p.Backend == Compat {
			p.fill(t.rules, t.family, s)
			compat = append(compat, p)
			continue
		}
		for _, c := range t.rules.chains {
			if c.name == keptChain {
				p.Kept = append(p.Kept, c.name)
			} else {
				p.Chains = append(p.Chains, c.name)
			}
		}
		p.Rules, p.Sets, p.Frontends = t.count, t.sets, t.frontends
		p.NodePortsAt, p.Everywhere, p.Entries = t.nodePortsAt, len(t.nodePortsAt) == 0, t.entries
		own = append(own, p)
	}
	return append(compat, own...), nil
}

// ipvsParts reads the state of the IPVS mode that is not in chains. It returns no part if there is none.
func ipvsParts(context.Context, scope) ([]Part, error) {
	p, err := readIPVS()
	if p.Needs = needs(err); err != nil && p.Needs == "" {
		return nil, err
	}
	if p.Clean() && len(p.Sets)+len(p.OtherServers) == 0 {
		return nil, nil
	}
	return []Part{p}, nil
}

// needs returns the missing privilege if err means that one is missing.
func needs(err error) string {
	if errors.Is(err, unix.EPERM) || errors.Is(err, fs.ErrPermission) {
		return "CAP_NET_ADMIN, as root, in the node's network namespace"
	}
	return ""
}

// explain adds the remedy to a refusal.
func explain(err error) error {
	if missing := needs(err); missing != "" {
		return fmt.Errorf("%w; needs %s", err, missing)
	}
	return err
}

// Serves reports whether the part sends connections in family f to endpoints of Services, so that
// the node can work with only kube-proxy's rules.
func (p *Part) Serves(f nft.Family) bool {
	if p.Backend == IPVS {
		return slices.ContainsFunc(p.Servers, func(s Server) bool {
			return len(s.open) > 0 && s.Frontend.Addr().Is6() == (f == nft.IP6)
		})
	}
	if p.Family != f.NFT() {
		return false
	}
	if p.Backend == ProxyTables {
		return slices.ContainsFunc(p.Sets, func(s Set) bool { return s.Name == "service-ips" && s.Elements > 0 })
	}
	toServices := func(j Jump) bool { return j.Chain == "PREROUTING" && j.Target == "KUBE-SERVICES" }
	return p.Table == "nat" && slices.ContainsFunc(p.Jumps, toServices) &&
		slices.ContainsFunc(p.Chains, perService.MatchString)
}

// Affinity returns the entries of kube-proxy's session affinity in its nftables and iptables modes. The
// inventory has those of the nftables mode; Affinity reads the others. An error says what could not be
// read; the entries are valid nevertheless.
func (i *Inventory) Affinity(ctx context.Context) (entries []AffinityEntry, err error) {
	ctx, cancel := context.WithTimeout(ctx, affinityPatience)
	defer cancel()
	for p := range i.Parts {
		part := &i.Parts[p]
		read, readErr := readClientLists(ctx, part.ClientLists)
		entries = slices.Concat(entries, part.Entries, read)
		err = errors.Join(err, readErr)
	}
	return entries[:min(len(entries), maxEntries)], err
}
