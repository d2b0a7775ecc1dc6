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
	"github.com/kube-nft/kube-nft/nft/services"
)

// A Takeover moves a node from kube-proxy to kube-nft. Run does it at once. In a daemon the sync loop
// makes the commits; Begin, Synced and Finish do the rest.
type Takeover struct {
	Node    legacy.Node    // where kube-proxy's state is
	Kernel  *kernel.Client // of the goroutine that commits
	Journal func(Entry)
	Alive   func(processes string) // called with the live kube-proxies for which the takeover waits
	// Missing returns the name of this node if there is no such Node object, and "" if there is.
	Missing func() string
	// Force removes kube-proxy's rules even if frontends vanish with them.
	Force bool
	// Losing, if set, is called with a comparison that loses something, before anything is removed.
	Losing func(*Comparison)

	// Prepare, for Run, reads the source and returns our tables as they are going to be. Run calls it
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
	// lost is the summary of the latest call of Losing. served is the generation at which serves last
	// found all well; 0 for none.
	lost   string
	served uint32
	// covers says that our tables serve already. Then a refusal does not hold back their updates.
	covers bool
	// inventory is what Foreign has found.
	inventory *legacy.Inventory
	// seeds and seedsErr are what Seeds has read at seedsRead.
	seeds     []services.Seed
	seedsErr  error
	seedsRead time.Time
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

// retry is a daemon's pause after a failed step. Meanwhile every Service is served. repair is its pause
// after another program has removed our tables, which the sync loop puts back at once.
const (
	retry  = 30 * time.Second
	repair = time.Second
)

// attempts is how often Run tries if somebody removes our tables each time while it works.
const attempts = 5

// Run performs the takeover and stops at the first step that fails. Then our tables, or what remains
// of kube-proxy's, serve the node, and Run can be called again. Run begins again by itself if another
// program removes our tables meanwhile, such as a firewall that flushes the ruleset.
func (t *Takeover) Run(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		err := t.run(ctx)
		var gone *goneError
		if attempt == attempts || !errors.As(err, &gone) {
			return err
		}
		t.Journal(Entry{Step: "begin again", Event: Begins, Text: gone.Error()})
	}
}

// run is one attempt of Run.
func (t *Takeover) run(ctx context.Context) error {
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
		if daemon != "" { // its settings and its source may differ from ours
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

// Begin returns when the loop may make its first commit. needed is false if there is nothing to take
// over. Begin writes nothing, and waits until no kube-proxy is alive. It does not wait if our tables
// are already in force: they must not become stale, and they win over kube-proxy's rules. Then running
// says that a kube-proxy is alive; Finish waits for its end. The first transaction carries what
// Foreign returns.
func (t *Takeover) Begin(ctx context.Context) (needed, running bool, err error) {
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
	return true, len(alive) > 0, nil
}

// inForce reports whether packets reach the tables. A start that was interrupted leaves tables without
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

// permit must be called before anything of kube-proxy's is removed. It compares kube-proxy's frontends
// with those of our tables, and returns a *LossError if too many would vanish. done sums up the
// comparison.
func (t *Takeover) permit(inventory *legacy.Inventory, ours nft.Tables) (done string, err error) {
	c, err := Compare(inventory, ours, t.Missing())
	if err != nil {
		return "", err
	}
	if err := c.Refusal(); err != nil && !t.Force {
		return "", err
	}
	if summary := c.Summary(); len(c.Lost) > 0 && t.Losing != nil && summary != t.lost {
		t.lost = summary
		t.Losing(&c)
	}
	return c.Summary(), nil
}

// Synced must be called after each sync, with the wanted tables. It returns true once: when the kernel
// holds them for the first time. Then Finish may begin.
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
		pause := retry
		var needs *needsError
		var gone *goneError
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
			t.State(Refused, err, pause)
		default:
			if errors.As(err, &gone) {
				pause = repair
			}
			t.State(Stuck, err, pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
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

// Foreign returns the messages that our first commit carries, which makes our tables want. They remove
// what kube-proxy has in nf_tables that can refuse a packet. kube-proxy's nat chains are removed later:
// see the package comment. held says that err is a *LossError and that the commit must wait, too: an
// address that our tables know is not served by kube-proxy's rules any more.
func (t *Takeover) Foreign(ctx context.Context, want nft.Tables) (messages []nft.ForeignMessage, generation uint32, held bool, err error) {
	if t.verified { // what is left is Finish's, which runs meanwhile
		_, generation, err = legacy.Messages(ctx, refusing)
		return nil, generation, false, err
	}
	inventory, err := t.Node.Take(ctx)
	if err != nil {
		return nil, 0, false, err
	}
	var alive []legacy.Process
	if len(inventory.Processes) > 0 {
		if alive, err = processList(legacy.Processes).steady(ctx, t.Node); err != nil {
			return nil, 0, false, err
		}
	}
	if t.covers && len(alive) > 0 { // its rules stay until it ends, and what it knows of clients is useful now
		t.inventory = &inventory
		_, generation, err = legacy.Messages(ctx, refusing)
		return nil, generation, false, err
	}
	_, err = t.permit(&inventory, want)
	if len(alive) > 0 { // it was started while the first commit was held back
		err = &LossError{"kube-proxy runs on this node again, " + describe(alive), "stop it"}
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
	messages, generation, err = legacy.Messages(ctx, refusing)
	return messages, generation, false, err
}

// refusing selects what kube-proxy has in nf_tables that can refuse a packet.
var refusing = legacy.Selector{
	Backends: []legacy.Backend{legacy.Compat, legacy.ProxyTables}, Tables: []string{"filter", "mangle"},
}

// clean removes what remains of kube-proxy's state. Our tables must be in force. It leaves what it
// cannot read: after it has removed the rest, it returns a *needsError.
//
// The tables of ip_tables come first, and of these the ones that can refuse connections. IPVS comes
// last, because rules use its sets until the rules are gone.
func (t *Takeover) clean(ctx context.Context) error {
	inventory, err := t.Node.Take(ctx)
	if err != nil {
		return fmt.Errorf("look for kube-proxy's state: %w", err)
	}
	if t.served = 0; !inventory.Clean() {
		if err := t.serves(ctx, &inventory); err != nil {
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
				if err := t.serves(ctx, &inventory); err != nil {
					return "", err
				}
				return strings.Join(contents, "; "), t.Node.Remove(ctx, selector)
			}})
		}
	}
	if len(steps) == 1 { // nothing is going to be removed
		steps = nil
	}
	lookAgain := func(ctx context.Context) (string, error) {
		if len(steps) > 0 { // somebody may have removed our tables during the last step
			var loss *LossError
			if err := t.serves(ctx, &inventory); errors.As(err, &loss) {
				return "", &goneError{loss.reason}
			} else if err != nil {
				return "", err
			}
		}
		return t.lookAgain(ctx)
	}
	return perform(ctx, t.Journal, append(steps, step{"look again", lookAgain}))
}

// serves returns an error unless our tables, as the kernel holds them now, serve enough of what
// kube-proxy's state serves according to the inventory. permit decides what is enough. serves has a
// socket of its own, because the loop uses the other one meanwhile.
func (t *Takeover) serves(ctx context.Context, inventory *legacy.Inventory) error {
	client, err := kernel.Open()
	if err != nil {
		return err
	}
	defer client.Close()
	if generation, err := client.Generation(ctx); err == nil && generation == t.served && t.served != 0 {
		return nil // nobody has changed anything since
	}
	ours, generation, err := client.Read(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("read our tables back: %w", err)
	case !inForce(ours):
		return &goneError{"they are not there"}
	}
	if _, err = t.permit(inventory, ours); err == nil {
		t.served = generation
	}
	return err
}

// A goneError says that another program has changed our tables since they were verified.
type goneError struct{ reason string }

func (e *goneError) Error() string {
	return "another program has changed our tables meanwhile, as nft flush ruleset does: " + e.reason
}

func selects(sel legacy.Selector, p *legacy.Part) bool {
	family := func(f nft.Family) bool { return f.NFT() == p.Family }
	return slices.Contains(sel.Backends, p.Backend) &&
		(sel.Families == nil || slices.ContainsFunc(sel.Families, family)) &&
		(sel.Tables == nil || slices.Contains(sel.Tables, p.Table))
}

// content says in words how much the removal takes from a part.
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

// lookAgain is the last step. It fails if kube-proxy's state is back or cannot be read.
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

// exceptions says in words what had to stay because foreign rules lead there; empty for nothing.
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

// look returns the inventory for a caller that must see everything: a *needsError if a part cannot be
// read.
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
