package legacy

import (
	"slices"

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

// iptablesTables are the tables that kube-proxy writes, filter first: its leftovers can
// refuse traffic, while those in nat only lose to a base chain of lower priority. Tables
// raw and security are none of our business.
var iptablesTables = [...]string{"filter", "nat", "mangle"}

// A Selector limits a removal. A nil field allows everything.
type Selector struct {
	Backends []Backend
	Families []nft.Family
	Tables   []string // of iptables: filter, nat, mangle; of ProxyTables: what belongs there
}

// takes reports whether the selector allows backend b.
func (s Selector) takes(b Backend) bool { return allows(s.Backends, b) }

// takesFamily reports whether the selector allows backend b in family f.
func (s Selector) takesFamily(b Backend, f nft.Family) bool {
	return s.takes(b) && allows(s.Families, f)
}

// takesTable reports whether the selector allows a table of backend b in family f. Of
// ProxyTables the chains at filter hooks count as filter, the rest as nat.
func (s Selector) takesTable(b Backend, f nft.Family, table string) bool {
	return s.takesFamily(b, f) && allows(s.Tables, table)
}

// allows reports whether v is listed, or nothing is.
func allows[T comparable](list []T, v T) bool { return list == nil || slices.Contains(list, v) }
