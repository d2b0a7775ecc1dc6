package readback

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// An Answer says what tables do with new connections to a frontend.
type Answer uint8

// The answers. Source ranges do not matter.
const (
	NoFrontend Answer = iota // the tables do not have the frontend
	NoAddress                // a node port, and node ports are served at no address of this node
	NoEndpoint               // its connections are rejected: the Service port has no endpoint
	NotLocal                 // connections from outside are dropped: no endpoint on this node, and the policy Local
	Served
)

// Answers knows the Answer of every frontend. Make it with NewAnswers.
type Answers struct {
	tables nft.Tables
	atNode map[nft.Family]bool // whether node ports have an address
	Total  int                 // frontends that have an endpoint, somewhere
}

// NewAnswers returns the answers of tables, whether they are wanted or were read from the kernel.
// local has the addresses of the node's interfaces.
func NewAnswers(tables nft.Tables, local []netip.Addr) *Answers {
	a := &Answers{tables: tables, atNode: make(map[nft.Family]bool)}
	for f, table := range tables {
		a.atNode[f] = slices.ContainsFunc(table.Rules(layout.ServicesChain), func(r nft.Rule) bool { // at every address
			return slices.Contains(r.Typed(f), nft.Stmt(nft.AddressLocal{Of: nft.Destination}))
		})
		for _, addr := range local {
			_, named := table.Elements(layout.NodePortAddressesSet)[nft.AddrKey(addr)]
			a.atNode[f] = a.atNode[f] || named
		}
	}
	for range a.Frontends() {
		a.Total++
	}
	return a
}

// Of returns the answer of a frontend.
func (a *Answers) Of(f tracker.Frontend) Answer {
	family := f.Family()
	table := a.tables[family]
	if table == nil {
		return NoFrontend
	}
	element, ok := table.Elements(layout.VerdictMap(f.NodePort()))[layout.FrontendKeyOf(f)]
	switch {
	case !ok:
		return NoFrontend
	case f.NodePort() && !a.atNode[family]:
		return NoAddress
	}
	return answerOf(element)
}

// Frontends goes through the frontends that are Served or NotLocal, with the names of their Service ports.
func (a *Answers) Frontends() iter.Seq2[tracker.Frontend, layout.PortName] {
	return func(yield func(tracker.Frontend, layout.PortName) bool) {
		for family, table := range a.tables {
			for _, set := range []string{layout.ServicesMap, layout.NodePortsMap} {
				if set == layout.NodePortsMap && !a.atNode[family] {
					continue
				}
				for key, element := range table.Elements(set) {
					if answerOf(element) != NoEndpoint && !yield(layout.FrontendIn(family, set, key),
						layout.ParsePortName(element.Comment)) {
						return
					}
				}
			}
		}
	}
}

// answerOf reads the answer from a frontend's element.
func answerOf(e nft.Element) Answer {
	switch p, _ := layout.PolicyOf(verdictOf(e)); {
	case p.Kind == layout.Refused, p.Kind == layout.Passed:
		return NoEndpoint
	case p.Kind == layout.Dropped, p.Kind == layout.ExternalLocal && p.Local == 0:
		return NotLocal
	}
	return Served
}
