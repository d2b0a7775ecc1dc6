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
	"github.com/kube-nft/kube-nft/nft/legacy"
)

// A Takeover moves a node from kube-proxy to kube-nft: at once, by Run; or while the sync loop of a
// daemon makes the commits, by Begin, Synced and Finish.
type Takeover struct {
	Node    legacy.Node    // where kube-proxy's state is
	Kernel  *kernel.Client // of the goroutine that commits
	Journal func(Entry)
	Alive   func(processes string) // called with the live kube-proxies for which the takeover waits

	// Commit, for Run, makes the kernel hold our tables and returns them. Its transaction carries
	// what ForeignMessages returns. done says in words what it did.
	Commit func(context.Context) (want nft.Tables, done string, err error)
	// Daemon, for Run, names the kube-nft that runs here and makes the commits; empty if none runs.
	Daemon func() (string, error)

	// State, for Begin, Synced and Finish, receives the progress, the failure, and the pause until
	// the next try; 0 means after the next sync.
	State    func(s State, err error, retry time.Duration)
	verified bool
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
)

// States lists all states.
var States = [...]State{Waiting, Taking, Taken, Stuck, Blind}

// retry is a daemon's pause after a failed step. Meanwhile every Service is served.
const retry = 30 * time.Second

// Run performs the takeover. It stops at the first step that fails. Then our tables, or what
// remains of kube-proxy's, serve the node, and Run can be called again.
func (t *Takeover) Run(ctx context.Context) error {
	if err := processList(legacy.Processes).waitForEnd(ctx, t.Node, t.Alive); errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("kube-proxy, %w; nothing was changed; stop it on this node and run this again", err)
	} else if err != nil {
		return err
	}
	if _, err := look(ctx, t.Node); err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	daemon, err := t.Daemon()
	if err != nil {
		return err
	}
	var want nft.Tables
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
		tables, _, err := t.Kernel.Read(ctx)
		if err == nil && len(tables) == 0 {
			err = errors.New("the daemon has not committed our tables yet; see its log, and run this again")
		}
		return fmt.Sprintf("our tables are there, in %d families", len(tables)), err
	}
	if err := perform(ctx, t.Journal, []step{{"commit", commit}, {"verify", check}}); err != nil {
		return err
	}
	return t.clean(ctx)
}

// Begin returns when the loop may make its first commit; needed is false if there is nothing to
// take over. It waits, and writes nothing, until no kube-proxy is alive. It does not wait if our
// tables are already in force: those must not become stale, and kube-proxy's rules lose to them.
// The first transaction carries what foreign returns, if foreign is not nil.
func (t *Takeover) Begin(ctx context.Context) (needed bool, foreign func(context.Context) ([]nft.ForeignMessage, uint32, error), err error) {
	t.State(Taking, nil, 0)
	list := processList(legacy.Processes)
	alive, aliveErr := list.steady(ctx, t.Node)
	found, err := t.Node.Take(ctx)
	if aliveErr == nil && len(alive) == 0 && err == nil && found.Clean() {
		t.State(Taken, nil, 0) // nothing to verify, so a start need not read our own tables
		return false, nil, nil
	}
	ours, _, err := t.Kernel.Read(ctx)
	if err != nil {
		return true, nil, err
	}
	if len(ours) == 0 {
		if err := t.waitForEnd(ctx); err != nil {
			return true, nil, err
		}
	}
	if alive, err = list.steady(ctx, t.Node); err != nil {
		return true, nil, fmt.Errorf("look for a live kube-proxy: %w", err)
	}
	if len(alive) == 0 {
		foreign = ForeignMessages
	}
	return true, foreign, nil
}

// Synced must be called after each sync, with the wanted tables. It returns true once, as soon as
// the kernel holds them. Then Finish may begin.
func (t *Takeover) Synced(ctx context.Context, want nft.Tables) bool {
	if t.verified {
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
		}
		t.State(Stuck, err, retry)
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

// ForeignMessages returns what goes into the transaction of our first commit: removals of what
// kube-proxy has in nf_tables that can refuse a packet. kube-proxy's nat chains go later, see the
// package comment.
func ForeignMessages(ctx context.Context) ([]nft.ForeignMessage, uint32, error) {
	return legacy.Messages(ctx, legacy.Selector{
		Backends: []legacy.Backend{legacy.Compat, legacy.ProxyTables}, Tables: []string{"filter", "mangle"},
	})
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
