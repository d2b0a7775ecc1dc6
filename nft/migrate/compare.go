package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/nft/words"
)

// How many of kube-proxy's frontends may vanish with a takeover. kube-proxy has ended by then, so
// what was deleted since is in its rules and not in the source. A Service with two ports and node
// ports has eight frontends in two families; in a large cluster more comes and goes meanwhile. A
// wrong source or setting loses more, or all that there is.
const (
	fewLost      = 8
	fewLostIn    = 100 // one in this many, if that is more
	fewLostOfAll = 4   // but no more than one in this many
)

// few is how many of n frontends may vanish.
func few(n int) int { return min(max(fewLost, n/fewLostIn), n/fewLostOfAll) }

// A Comparison holds kube-proxy's frontends against those of our tables.
type Comparison struct {
	Served int    `json:"served"` // by kube-proxy
	Lost   []Lost `json:"lost"`   // in order
	// Differences are those of frontends and, if the inventory has them, of endpoint lists; in order. Lost is the part
	// of them that a takeover asks about.
	Differences []Difference `json:"differences,omitempty"`
	// Node is the name of this node if there is no such Node object.
	Node string `json:"node,omitempty"`
	// Empty says that our tables serve nothing.
	Empty bool `json:"empty,omitempty"`
	// Clean says that nothing of kube-proxy's would go.
	Clean bool `json:"clean,omitempty"`
}

// A Lost frontend is served by kube-proxy and would not be by us.
type Lost struct {
	Frontend string `json:"frontend"`
	Why      string `json:"why"`
	address  bool   // for lack of an address of node ports
}

// Compare holds kube-proxy's frontends against tables of ours, wanted ones or what the kernel holds.
// node is the name of this node if it has no Node object.
func Compare(inv *legacy.Inventory, tables nft.Tables, node string) (Comparison, error) {
	local, err := legacy.InterfaceAddresses()
	if err != nil {
		return Comparison{}, err
	}
	return compare(inv, tables, node, local), nil
}

// compare is Compare on a node with these addresses.
func compare(inv *legacy.Inventory, tables nft.Tables, node string, local []netip.Addr) Comparison {
	ours := readback.NewAnswers(tables, local)
	c := Comparison{Node: node, Empty: ours.Total == 0, Clean: inv.Clean(), Lost: []Lost{}}
	var theirs []legacy.Frontend
	for _, p := range inv.Parts {
		theirs = append(theirs, p.Frontends...)
	}
	// Rules of two modes may lie over each other.
	slices.SortFunc(theirs, func(a, b legacy.Frontend) int {
		return cmp.Or(a.Compare(b.Frontend), -strings.Compare(a.Service, b.Service))
	})
	each := slices.Clone(theirs)
	theirs = slices.CompactFunc(theirs, func(a, b legacy.Frontend) bool { return a.Frontend == b.Frontend })
	for _, f := range theirs {
		lost, detail := Lost{Frontend: f.String()}, ""
		switch ours.Of(f.Frontend) {
		case readback.Served, readback.NotLocal: // a difference of lists at most: kube-proxy's modes differ in NotLocal
			continue
		case readback.NoFrontend:
			lost.Why, detail = "no Service has them", "no Service has it"
		case readback.NoAddress:
			lost.Why, lost.address = "node ports would be served at no address of this node", true
			detail = "kube-nft would serve node ports at no address of this node"
		case readback.NoEndpoint:
			lost.Why, detail = "their Services have no endpoint", "its Service has no endpoint"
		}
		c.Lost = append(c.Lost, lost)
		c.Differences = append(c.Differences, Difference{Kind: OnlyKubeProxy, Frontend: lost.Frontend,
			Detail: "kube-proxy serves it, and " + detail, At: f.Frontend})
	}
	c.Served = len(theirs)
	if inv.Endpoints {
		c.compareLists(each, ours, tables)
	}
	return c
}

// A LossError says why a takeover is refused: frontends would not be served any more.
type LossError struct{ reason, remedy string }

func (e *LossError) Error() string {
	return e.reason + ": nothing of kube-proxy's is removed; " + e.remedy
}

// IsLoss reports whether err refuses a takeover because of what would be lost.
func IsLoss(err error) bool { return errors.As(err, new(*LossError)) }

// Refusal returns why kube-proxy's rules have to stay, a *LossError; nil if they may go.
func (c *Comparison) Refusal() error {
	noAddress := func(l Lost) bool { return l.address }
	switch {
	case c.Clean:
	case c.Node != "":
		return &LossError{
			fmt.Sprintf("no Node is called %s, so neither the node's addresses nor its own endpoints are known, and %s", c.Node,
				c.Summary()),
			"give the Node's name with --hostname-override",
		}
	case c.Empty:
		return &LossError{"the source has no Service with an endpoint, and " + c.Summary(),
			"look whether it is the right API server or directory"}
	case slices.ContainsFunc(c.Lost, noAddress):
		return &LossError{c.Summary(), "the Node's addresses, or --nodeport-addresses, have to be addresses of this node"}
	case len(c.Lost) > few(c.Served):
		return &LossError{c.Summary(),
			"look whether it is the right API server or directory, with all Services and endpoints"}
	}
	return nil
}

// shownLost bounds how many frontends are named, for each reason.
const shownLost = 10

// Summary says what would be lost and names it, within bounds.
func (c *Comparison) Summary() string {
	if len(c.Lost) == 0 {
		return "kube-nft would serve all that kube-proxy serves: " + words.Plural(c.Served, "frontend")
	}
	named := make(map[string][]string)
	var reasons []string // in the order of the frontends
	for _, l := range c.Lost {
		if named[l.Why] == nil {
			reasons = append(reasons, l.Why)
		}
		named[l.Why] = append(named[l.Why], l.Frontend)
	}
	for i, why := range reasons {
		reasons[i] = why + ": " + words.Some(named[why], shownLost, ", ")
	}
	return fmt.Sprintf("%d of %s that kube-proxy serves would not be served; %s", len(c.Lost),
		words.Plural(c.Served, "frontend"), strings.Join(reasons, "; "))
}

// Checks are the comparison as a part of a plan. With force, a refusal is a warning.
func (c *Comparison) Checks(force bool) []Check {
	checks := []Check{c.check(force)}
	lists := slices.DeleteFunc(slices.Clone(c.Differences), func(d Difference) bool { return d.Kind == OnlyKubeProxy })
	if len(lists) > 0 && c.Served > 0 { // otherwise kube-proxy has left, or was never here
		checks = append(checks, Check{
			Level: Note, About: "endpoints", Found: "kube-proxy's rules and kube-nft's differ at " + Named(lists),
			Means: "kube-proxy may not have followed the latest change yet, or its rules are old because it does not run",
			Do:    "look again; --mode=shadow counts the differences that last",
		})
	}
	return checks
}

// check is about what would be lost.
func (c *Comparison) check(force bool) Check {
	check := Check{Level: OK, About: "frontends", Found: c.Summary()}
	var loss *LossError
	switch err := c.Refusal(); {
	case errors.As(err, &loss) && force:
		check.Level, check.Found, check.Means = Warning, loss.reason, "--force skips this check"
	case errors.As(err, &loss):
		check.Level, check.Found, check.Means = Blocks, loss.reason, "kube-proxy's rules stay"
		check.Do = loss.remedy + "; --force skips this check"
	case len(c.Lost) > 0:
		check.Level = Warning
		check.Means = "so few may have been deleted since kube-proxy wrote its rules"
		check.Do = "if one of them is needed, look why it is not served"
	case c.Clean && c.Served == 0:
		check.Found = "kube-proxy serves none"
	}
	return check
}
