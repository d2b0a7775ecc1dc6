package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
)

// A Takeover brings a node from kube-proxy to kube-nft. All fields but Node must be set.
type Takeover struct {
	Node legacy.Node // where kube-proxy's state is
	// Commit makes the kernel hold our tables and removes, in the same transaction if there
	// is one, what kube-proxy has in nf_tables that refuses packets. It says what it did.
	Commit func(context.Context) (done string, err error)
	// Verify finds out whether our tables are in force. It says how.
	Verify  func(context.Context) (done string, err error)
	Journal func(Entry)
}

// An Entry of the journal says that a step of a migration begins or how it ended.
type Entry struct {
	Step  string
	Event Event
	Text  string // what was done, or why it failed; empty when a step begins
}

// An Event is what an Entry is about.
type Event string

// The events.
const (
	Begins Event = "begins"
	Done   Event = "done"
	Failed Event = "failed"
)

// String returns the entry as a line for an operator.
func (e Entry) String() string {
	if e.Text == "" {
		return fmt.Sprintf("%s: %s", e.Step, e.Event)
	}
	return fmt.Sprintf("%s: %s: %s", e.Step, e.Event, e.Text)
}

// A step is one change that happens as a whole or not at all.
type step struct {
	name string
	do   func(context.Context) (done string, err error)
}

// Run does all of it. It stops at the first step that fails: the node is served by our
// tables or by what is left of kube-proxy's, and Run can be called again.
func (t *Takeover) Run(ctx context.Context) error {
	if err := t.perform(ctx, []step{{"commit", t.Commit}, {"verify", t.Verify}}); err != nil {
		return err
	}
	return t.Clean(ctx)
}

// Clean removes what is left of kube-proxy's state. Our tables must be in force. What it
// cannot see, it leaves, and returns a *NeedsError after all the rest.
func (t *Takeover) Clean(ctx context.Context) error {
	inventory, err := t.Node.Take(ctx)
	if err != nil {
		return fmt.Errorf("look for kube-proxy's state: %w", err)
	}
	steps := t.removals(&inventory)
	if len(steps) > 0 {
		steps = append([]step{{"let packets pass", settle}}, steps...)
	}
	return t.perform(ctx, append(steps, step{"look again", t.lookAgain}))
}

// A NeedsError says that a place where kube-proxy may have left something could not be
// looked at.
type NeedsError struct {
	Where string // backend and family
	Needs string // the privilege that lacks
}

func (e *NeedsError) Error() string {
	return fmt.Sprintf("look for kube-proxy's state: %s could not be read: needs %s", e.Where, e.Needs)
}

// Look takes the inventory for somebody who has to see everything.
func Look(ctx context.Context, node legacy.Node) (legacy.Inventory, error) {
	inventory, err := node.Take(ctx)
	if err != nil {
		return inventory, fmt.Errorf("look for kube-proxy's state: %w", err)
	}
	for i := range inventory.Parts {
		if p := &inventory.Parts[i]; p.Needs != "" {
			return inventory, &NeedsError{Where: partName(p), Needs: p.Needs}
		}
	}
	return inventory, nil
}

// perform does steps in order, with a journal.
func (t *Takeover) perform(ctx context.Context, steps []step) error {
	for _, s := range steps {
		t.Journal(Entry{Step: s.name, Event: Begins})
		done, err := s.do(ctx)
		if err != nil {
			t.Journal(Entry{Step: s.name, Event: Failed, Text: err.Error()})
			return fmt.Errorf("%s: %w", s.name, err)
		}
		t.Journal(Entry{Step: s.name, Event: Done, Text: done})
	}
	return nil
}

// removals lists the steps for what was found. The tables of ip_tables come first, those
// that can refuse connections before the others; IPVS comes last, for its sets are in use
// until the rules are gone.
func (t *Takeover) removals(inv *legacy.Inventory) (steps []step) {
	for _, table := range legacyTables {
		for _, f := range nft.Families {
			steps = append(steps, t.removal(inv, legacy.Selector{
				Backends: []legacy.Backend{legacy.Xtables}, Families: []nft.Family{f}, Tables: []string{table},
			})...)
		}
	}
	steps = append(steps, t.removal(inv, legacy.Selector{Backends: []legacy.Backend{legacy.Compat, legacy.ProxyTables}})...)
	return append(steps, t.removal(inv, legacy.Selector{Backends: []legacy.Backend{legacy.IPVS}})...)
}

// removal is the step that removes what sel selects, if there is anything.
func (t *Takeover) removal(inv *legacy.Inventory, sel legacy.Selector) []step {
	var names, contents []string
	for i := range inv.Parts {
		if p := &inv.Parts[i]; selects(sel, p) && !p.Clean() && p.Needs == "" {
			names = append(names, partName(p))
			contents = append(contents, content(p))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []step{{"remove from " + strings.Join(names, ", "), func(ctx context.Context) (string, error) {
		return strings.Join(contents, "; "), t.Node.Remove(ctx, sel)
	}}}
}

// selects reports whether a part is among those of a selector.
func selects(sel legacy.Selector, p *legacy.Part) bool {
	family := func(f nft.Family) bool { return f.NFT() == p.Family }
	return slices.Contains(sel.Backends, p.Backend) &&
		(sel.Families == nil || slices.ContainsFunc(sel.Families, family)) &&
		(sel.Tables == nil || slices.Contains(sel.Tables, p.Table))
}

// content counts what a part loses.
func content(p *legacy.Part) string {
	var list []string
	count := func(n int, one, many string) {
		switch {
		case n == 1:
			list = append(list, "1 "+one)
		case n > 1:
			list = append(list, fmt.Sprintf("%d %s", n, many))
		}
	}
	count(len(p.Jumps), "jump", "jumps")
	count(len(p.Chains), "chain", "chains")
	count(p.Rules, "rule in them", "rules in them")
	count(len(p.Sets), "set", "sets")
	if p.Device != "" {
		list = append(list, "device "+p.Device)
	}
	return strings.Join(list, ", ")
}

// errLeft says that a removal was not complete.
var errLeft = errors.New("kube-proxy's state is back: is a kube-proxy running that is hidden from us? Stop it and run this again")

// lookAgain is the last step.
func (t *Takeover) lookAgain(ctx context.Context) (string, error) {
	inventory, err := Look(ctx, t.Node)
	if err != nil {
		return "", err
	}
	var left []string
	for i := range inventory.Parts {
		if p := &inventory.Parts[i]; !p.Clean() {
			left = append(left, partName(p))
		}
	}
	if len(left) > 0 {
		return "", fmt.Errorf("in %s: %w", strings.Join(left, ", "), errLeft)
	}
	return "nothing of kube-proxy's is left" + exceptions(&inventory), nil
}

// exceptions names what had to stay because rules of others send there.
func exceptions(inv *legacy.Inventory) string {
	empty, borrowed := 0, 0
	for i := range inv.Parts {
		p := &inv.Parts[i]
		empty += len(p.Emptied)
		borrowed += len(p.Blocked)
	}
	if borrowed == 0 {
		return ""
	}
	return fmt.Sprintf(" but chains that %d foreign rules send to, %d of them empty; migrate plan lists them", borrowed, empty)
}
