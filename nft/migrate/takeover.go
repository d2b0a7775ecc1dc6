package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/legacy"
)

// A Takeover moves a node from kube-proxy to kube-nft: at once, by Run; or while the sync loop of a
// daemon makes the commits, by Begin, Synced and Finish.
type Takeover struct {
	Node    legacy.Node    // where kube-proxy's state is
	Kernel  *kernel.Client // of the goroutine that commits
	Journal func(Entry)
	Alive   func(processes string) // called with the live kube-proxies for which the takeover waits
	// Missing returns the name of this node if there is no such Node object, and "" if there is.
	Missing func() string
	// Force removes kube-proxy's rules whatever frontends that costs.
	Force bool
	// Losing, if set, is called with a comparison that loses something, before anything is removed.
	Losing func(*Comparison)

	// Prepare, for Run, reads the source and returns what our tables are going to be. It is called
	// when no kube-proxy is alive any more.
	Prepare func(context.Context) (nft.Tables, error)
	// Commit, for Run, makes the kernel hold our tables and returns them. Its transaction carries
	// what Foreign returns. done says in words what it did.
	Commit func(context.Context) (want nft.Tables, done string, err error)
	// Daemon, for Run, names the kube-nft that runs here and makes the commits; empty if none runs.
	Daemon func() (string, error)

	// State, for Begin, Synced and Finish, receives the progress, the failure, and the pause until
	// the next try; 0 means after the next sync.
	State    func(s State, err error, retry time.Duration)
	verified bool
	// covers says that our tables serve already: a refusal does not keep them from being brought up
	// to date.
	covers bool
	// inventory is what Foreign has found.
	inventory *legacy.Inventory
}

// A State says how far the takeover of a daemon is; for metrics.
type State string

// The states.
const (
	Waiting State = "waiting" // for a live kube-proxy to end
	Taking  State = "taking"  // committing, verifying, removing
	Taken   State = "done"    // nothing of kube-proxy's is left
	Stuck   State = "failed"  // a step failed; it is tried again
	Blind   State = "blind"   // done, except places that need a privilege to read
	Refused State = "refused" // frontends would vanish; kube-proxy's rules stay until that changes
)

// States lists all states.
var States = [...]State{Waiting, Taking, Taken, Stuck, Blind, Refused}

// retry is a daemon's pause after a failed step. Meanwhile every Service is served.
const retry = 30 * time.Second

// Run performs the takeover. It stops at the first step that fails. Then our tables, or what
// remains of kube-proxy's, serve the node, and Run can be called again.
func (t *Takeover) Run(ctx context.Context) error {
	list := processList(legacy.Processes)
	daemon, err := t.Daemon()
	if err != nil {
		return err
	}
	if daemon != "" {
		list = processList(list.visible)
	}
	if err := list.waitForEnd(ctx, t.Node, t.Alive); errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("kube-proxy, %w; nothing was changed; stop it on this node and run this again", err)
	} else if err != nil {
		return err
	}
	inventory, err := look(ctx, t.Node)
	if err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	if daemon, err = t.Daemon(); err != nil { // it may have started or ended meanwhile
		return err
	}
	want, err := t.Prepare(ctx)
	if err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	compare := func(ctx context.Context) (string, error) {
		if daemon != "" { // whose settings and source may be others
			if want, _, err = t.Kernel.Read(ctx); err != nil {
				return "", err
			}
			if len(want) == 0 {
				return "", errors.New("the daemon has not committed our tables yet; see its log, and run this again")
			}
		}
		return t.permit(&inventory, want)
	}
	commit := func(ctx context.Context) (done string, err error) {
		if daemon != "" {
			return "left to the running daemon, " + daemon, nil
		}
		want, done, err = t.Commit(ctx)
		return done, err
	}
	check := func(ctx context.Context) (string, error) {
		if daemon == "" {
			looked, err := verify(ctx, t.Kernel, want)
			return fmt.Sprintf("our tables read back as they should be, %d elements looked up", looked), err
		}
		return fmt.Sprintf("our tables are there, in %d families", len(want)), nil
	}
	if err := perform(ctx, t.Journal, []step{{"compare", compare}, {"commit", commit}, {"verify", check}}); err != nil {
		return err
	}
	return t.clean(ctx)
}

// Begin returns when the loop may make its first commit; needed is false if there is nothing to
// take over. It waits, and writes nothing, until no kube-proxy is alive. It does not wait if our
// tables are already in force: those must not become stale, and kube-proxy's rules lose to them.
// The first transaction carries what Foreign returns, if foreign.
func (t *Takeover) Begin(ctx context.Context) (needed, foreign bool, err error) {
	t.State(Taking, nil, 0)
	list := processList(legacy.Processes)
	alive, aliveErr := list.steady(ctx, t.Node)
	found, err := t.Node.Take(ctx)
	if aliveErr == nil && len(alive) == 0 && err == nil && found.Clean() {
		t.State(Taken, nil, 0) // nothing to verify, so a start need not read our own tables
		return false, false, nil
	}
	ours, _, err := t.Kernel.Read(ctx)
	if err != nil {
		return true, false, err
	}
	t.covers = inForce(ours)
	if !t.covers {
		if err := t.waitForEnd(ctx); err != nil {
			return true, false, err
		}
	}
	if alive, err = list.steady(ctx, t.Node); err != nil {
		return true, false, fmt.Errorf("look for a live kube-proxy: %w", err)
	}
	return true, len(alive) == 0, nil
}

// inForce reports whether packets reach tables: a start that was interrupted leaves tables without
// base chains.
func inForce(tables nft.Tables) bool {
	for _, table := range tables {
		for _, chain := range table.Chains {
			if chain.Hook != nil {
				return true
			}
		}
	}
	return false
}

// permit is asked before anything of kube-proxy's is removed. It compares kube-proxy's frontends with
// those of our tables, and returns a *LossError if too many would vanish.
func (t *Takeover) permit(inventory *legacy.Inventory, ours nft.Tables) (done string, err error) {
	c, err := Compare(inventory, ours, t.Missing())
	if err != nil {
		return "", err
	}
	if err := c.Refusal(); err != nil && !t.Force {
		return "", err
	}
	if len(c.Lost) > 0 && t.Losing != nil {
		t.Losing(&c)
	}
	return c.Summary(), nil
}

// Synced must be called after each sync, with the wanted tables. It returns true once, as soon as
// the kernel holds them. Then Finish may begin.
func (t *Takeover) Synced(ctx context.Context, want nft.Tables) bool {
	if t.inventory = nil; t.verified {
		return false
	}
	looked, err := verify(ctx, t.Kernel, want)
	if err != nil {
		t.State(Stuck, err, 0) // kube-proxy's rules stay
		return false
	}
	t.verified = true
	t.Journal(Entry{Step: "verify", Event: Done, Text: fmt.Sprintf("%d elements looked up", looked)})
	return true
}

// Finish removes what remains of kube-proxy's state. It tries until that succeeds, ctx ends or a
// privilege is missing.
func (t *Takeover) Finish(ctx context.Context) {
	for {
		err := t.waitForEnd(ctx)
		if err == nil {
			err = t.clean(ctx)
		}
		var needs *needsError
		switch {
		case err == nil:
			t.State(Taken, nil, 0)
			return
		case ctx.Err() != nil:
			return
		case errors.As(err, &needs):
			t.State(Blind, err, 0)
			return
		case IsLoss(err):
			t.State(Refused, err, retry)
		default:
			t.State(Stuck, err, retry)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
	}
}

// waitForEnd waits until no kube-proxy is alive.
func (t *Takeover) waitForEnd(ctx context.Context) error {
	err := processList(legacy.Processes).waitForEnd(ctx, t.Node, func(processes string) {
		t.State(Waiting, nil, 0)
		t.Alive(processes)
	})
	t.State(Taking, nil, 0)
	return err
}

// Foreign returns what goes into the transaction of our first commit, which makes our tables want:
// removals of what kube-proxy has in nf_tables that can refuse a packet. kube-proxy's nat chains go
// later, see the package comment. held says of a *LossError that the commit has to wait, too: what
// our tables know of an address keeps kube-proxy's rules from serving it.
func (t *Takeover) Foreign(ctx context.Context, want nft.Tables) (messages []nft.ForeignMessage, generation uint32, held bool, err error) {
	inventory, err := t.Node.Take(ctx)
	if err != nil {
		return nil, 0, false, err
	}
	_, err = t.permit(&inventory, want)
	if !t.covers && len(inventory.Processes) > 0 { // one that was started while the first commit was held back
		alive, listErr := processList(legacy.Processes).steady(ctx, t.Node)
		switch {
		case listErr != nil:
			return nil, 0, false, listErr
		case len(alive) > 0:
			err = &LossError{"kube-proxy runs on this node again, " + describe(alive), "stop it"}
		}
	}
	if err != nil {
		if held = IsLoss(err) && !t.covers; held && t.State != nil {
			t.State(Refused, err, 0)
		}
		return nil, 0, held, err
	}
	if t.State != nil {
		t.State(Taking, nil, 0)
	}
	t.inventory = &inventory
	messages, generation, err = legacy.Messages(ctx, legacy.Selector{
		Backends: []legacy.Backend{legacy.Compat, legacy.ProxyTables}, Tables: []string{"filter", "mangle"},
	})
	return messages, generation, false, err
}

// clean removes what remains of kube-proxy's state. Our tables must be in force. It leaves what it
// cannot read, and returns a *needsError after all the rest.
//
// The tables of ip_tables come first, the ones that can refuse connections before the others. IPVS
// comes last: rules use its sets until they are gone.
func (t *Takeover) clean(ctx context.Context) error {
	inventory, err := t.Node.Take(ctx)
	if err != nil {
		return fmt.Errorf("look for kube-proxy's state: %w", err)
	}
	if !inventory.Clean() {
		ours, err := readOurs(ctx)
		if err != nil {
			return err
		}
		if _, err := t.permit(&inventory, ours); err != nil {
			return err
		}
	}
	var selectors []legacy.Selector
	for _, table := range legacyTables {
		for _, f := range nft.Families {
			selectors = append(selectors, legacy.Selector{Backends: []legacy.Backend{legacy.Xtables}, Families: []nft.Family{f}, Tables: []string{table}})
		}
	}
	selectors = append(selectors, legacy.Selector{Backends: []legacy.Backend{legacy.Compat, legacy.ProxyTables}}, legacy.Selector{Backends: []legacy.Backend{legacy.IPVS}})
	steps := []step{{"let packets pass", settle}}
	for _, selector := range selectors {
		var names, contents []string
		for i := range inventory.Parts {
			if p := &inventory.Parts[i]; selects(selector, p) && dirty(p) {
				names, contents = append(names, partName(p)), append(contents, content(p))
			}
		}
		if len(names) > 0 {
			steps = append(steps, step{"remove from " + strings.Join(names, ", "), func(ctx context.Context) (string, error) {
				return strings.Join(contents, "; "), t.Node.Remove(ctx, selector)
			}})
		}
	}
	if len(steps) == 1 { // nothing is going to be removed
		steps = nil
	}
	return perform(ctx, t.Journal, append(steps, step{"look again", t.lookAgain}))
}

// readOurs reads our tables over a socket of its own: the loop uses the other one meanwhile.
func readOurs(ctx context.Context) (nft.Tables, error) {
	client, err := kernel.Open()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	client.Lists = layout.Lists
	ours, _, err := client.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read our tables back: %w", err)
	}
	return ours, nil
}

// selects reports whether a selector selects a part.
func selects(sel legacy.Selector, p *legacy.Part) bool {
	family := func(f nft.Family) bool { return f.NFT() == p.Family }
	return slices.Contains(sel.Backends, p.Backend) &&
		(sel.Families == nil || slices.ContainsFunc(sel.Families, family)) &&
		(sel.Tables == nil || slices.Contains(sel.Tables, p.Table))
}

// content counts what a part loses.
func content(p *legacy.Part) string {
	var list []string
	for _, count := range []struct {
		n         int
		one, many string
	}{
		{len(p.Jumps), "jump", "jumps"}, {len(p.Chains), "chain", "chains"},
		{p.Rules, "rule in them", "rules in them"}, {len(p.Sets), "set", "sets"},
	} {
		switch {
		case count.n == 1:
			list = append(list, "1 "+count.one)
		case count.n > 1:
			list = append(list, fmt.Sprintf("%d %s", count.n, count.many))
		}
	}
	if p.Device != "" {
		list = append(list, "device "+p.Device)
	}
	return strings.Join(list, ", ")
}

// lookAgain is the last step.
func (t *Takeover) lookAgain(ctx context.Context) (string, error) {
	inventory, err := look(ctx, t.Node)
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
		return "", fmt.Errorf("in %s: kube-proxy's state is back: is a kube-proxy running that is hidden from us? Stop it and run this again", strings.Join(left, ", "))
	}
	return "nothing of kube-proxy's is left" + exceptions(&inventory), nil
}

// exceptions names what had to stay because foreign rules lead there.
func exceptions(inv *legacy.Inventory) string {
	empty, blocked := 0, 0
	for i := range inv.Parts {
		empty += len(inv.Parts[i].Emptied)
		blocked += len(inv.Parts[i].Blocked)
	}
	if blocked == 0 {
		return ""
	}
	return fmt.Sprintf(" but chains that %d foreign rules send to, %d of them empty; migrate plan lists them", blocked, empty)
}

// A needsError says that a place where kube-proxy may have left state could not be read.
type needsError struct {
	Where string // backend and family
	Needs string // the missing privilege
}

func (e *needsError) Error() string {
	return fmt.Sprintf("look for kube-proxy's state: %s could not be read: needs %s", e.Where, e.Needs)
}

// look returns the inventory, for a caller that must see everything.
func look(ctx context.Context, node legacy.Node) (legacy.Inventory, error) {
	inventory, err := node.Take(ctx)
	if err != nil {
		return inventory, fmt.Errorf("look for kube-proxy's state: %w", err)
	}
	for i := range inventory.Parts {
		if p := &inventory.Parts[i]; p.Needs != "" {
			return inventory, &needsError{Where: partName(p), Needs: p.Needs}
		}
	}
	return inventory, nil
}
