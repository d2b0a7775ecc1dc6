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
	"github.com/kube-nft/kube-nft/nft/words"
)

// A Takeover moves a node from kube-proxy to kube-nft. The daemon calls its methods in this order:
// Begin, First for the messages that its first commit carries, Verify after that commit, and then Wait
// and Remove. A command beside a running daemon calls Wait and Remove alone.
type Takeover struct {
	Node    legacy.Node    // where kube-proxy's state is
	Kernel  *kernel.Client // of the goroutine that commits
	Journal func(Entry)
	// Force removes kube-proxy's rules even if frontends vanish with them.
	Force bool
	// Beside says that another process, a daemon, makes the commits.
	Beside bool
	// Drain is how long connections of kube-proxy's IPVS mode may keep its device and virtual servers,
	// from the first Remove on.
	Drain time.Duration

	verified bool
	// compared is the result of the comparison that the journal had last. served is the generation at
	// which Remove last found that our tables serve enough; 0 for none.
	compared string
	served   uint32
	// covers says that our tables serve already. Then a refusal does not hold back their updates.
	covers bool
	// drained is when Drain is over; the zero value before the first Remove that finds IPVS.
	drained time.Time
	// inventory is what First has found.
	inventory *legacy.Inventory
	// knownClients and knownClientsErr are what KnownClients has read at knownClientsAt.
	knownClients    []services.KnownClient
	knownClientsErr error
	knownClientsAt  time.Time
}

// A State says how far a takeover is; for metrics.
type State string

// The states.
const (
	Waiting    State = "waiting"    // for a live kube-proxy to end
	Replacing  State = "replacing"  // committing, verifying, removing
	Draining   State = "draining"   // done, except what connections of the IPVS mode use
	Taken      State = "done"       // nothing of kube-proxy's is left
	Stuck      State = "failed"     // a step failed; the daemon tries again
	Unverified State = "unverified" // done, except places that need a privilege to read
	Refused    State = "refused"    // frontends would vanish; kube-proxy's rules stay until that changes
)

// States lists all states.
var States = [...]State{Waiting, Replacing, Draining, Taken, Stuck, Unverified, Refused}

// StateAfter returns the state after a step that returned err, or after the last step if err is nil.
func StateAfter(err error) State {
	switch {
	case err == nil:
		return Taken
	case IsDraining(err):
		return Draining
	case errors.As(err, new(*needsError)):
		return Unverified
	case IsLoss(err):
		return Refused
	}
	return Stuck
}

// Begin returns when the first commit may be made. needed is false if there is nothing to take over.
// Begin writes nothing, and waits until no kube-proxy is alive. It does not wait if our tables are
// already in force: they must not become stale, and they win over kube-proxy's rules. Then running
// says that a kube-proxy is alive.
func (t *Takeover) Begin(ctx context.Context) (needed, running bool, err error) {
	list := processList(legacy.Processes)
	alive, aliveErr := list.steady(ctx, t.Node)
	found, err := t.Node.Inventory(ctx)
	if aliveErr == nil && len(alive) == 0 && err == nil && found.Clean() {
		return false, false, nil // nothing to verify, so a start need not read our own tables
	}
	ours, _, err := t.Kernel.Read(ctx)
	if err != nil {
		return true, false, err
	}
	t.covers = inForce(ours)
	if !t.covers {
		if err := t.Wait(ctx); err != nil {
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
// with those of our tables, and returns a *LossError if too many would vanish. missing is the name of
// this node if it has no Node object.
func (t *Takeover) permit(inventory *legacy.Inventory, ours nft.Tables, missing string) error {
	c, err := Compare(inventory, ours, missing)
	if err != nil {
		return err
	}
	if err := c.Refusal(); err != nil && !t.Force {
		return err
	}
	if summary := c.Summary(); summary != t.compared {
		t.compared = summary
		t.Journal(Entry{Step: "compare", Event: Done, Text: summary})
	}
	return nil
}

// First returns the messages that our first commit carries, which makes our tables want. They remove
// what kube-proxy has in nf_tables that can refuse a packet. kube-proxy's nat chains are removed later:
// see the package comment. missing is the name of this node if it has no Node object.
//
// A *LossError says that the commit must wait, too: an address that our tables know is not served by
// kube-proxy's rules any more. After any other error our tables are committed without messages.
func (t *Takeover) First(ctx context.Context, want nft.Tables,
	missing string) (messages []nft.ForeignMessage, generation uint32, err error) {
	if t.verified { // the rest is Remove's, which runs meanwhile
		_, generation, err = legacy.Messages(ctx, refusing)
		return nil, generation, err
	}
	inventory, err := t.Node.Inventory(ctx)
	if err != nil {
		return nil, 0, err
	}
	var alive []legacy.Process
	if len(inventory.Processes) > 0 {
		if alive, err = processList(legacy.Processes).steady(ctx, t.Node); err != nil {
			return nil, 0, err
		}
	}
	if t.covers && len(alive) > 0 { // its rules stay until it ends, and what it knows of clients is useful now
		t.inventory = &inventory
		_, generation, err = legacy.Messages(ctx, refusing)
		return nil, generation, err
	}
	err = t.permit(&inventory, want, missing)
	if len(alive) > 0 { // it was started while the first commit was held back
		err = &LossError{"kube-proxy runs on this node again, " + describe(alive), "stop it"}
	}
	if IsLoss(err) && t.covers {
		err = errors.New(err.Error()) // our tables serve: this commit does not wait
	}
	if err != nil {
		return nil, 0, err
	}
	t.inventory = &inventory
	return legacy.Messages(ctx, refusing)
}

// Verify must be called after each commit, with the wanted tables. It reads our tables back, and looks
// frontends up as a packet would. verified says that the kernel holds all for the first time: Remove
// may be called now.
func (t *Takeover) Verify(ctx context.Context, want nft.Tables) (verified bool, err error) {
	if t.inventory = nil; t.verified {
		return false, nil
	}
	check := func(ctx context.Context) (string, error) {
		looked, err := verify(ctx, t.Kernel, want)
		return fmt.Sprintf("our tables read back as they should be, %d elements looked up", looked), err
	}
	err = perform(ctx, t.Journal, []step{{"verify", check}})
	t.verified = err == nil
	return t.verified, err
}

// Wait waits until no kube-proxy is alive.
func (t *Takeover) Wait(ctx context.Context) error {
	const name = "wait for kube-proxy to end"
	list, waited := processList(legacy.Processes), false
	if t.Beside {
		list = processList(list.visible)
	}
	err := list.waitForEnd(ctx, t.Node, func(processes string) {
		waited = true
		t.Journal(Entry{Step: name, Event: Waits, Text: processes})
	})
	if err == nil && waited {
		t.Journal(Entry{Step: name, Event: Done, Text: "no kube-proxy runs any more"})
	}
	return err
}

// nfTables selects what kube-proxy has in nf_tables, and refusing what of it can refuse a packet.
var (
	nfTables = legacy.Selector{Backends: []legacy.Backend{legacy.Compat, legacy.ProxyTables}}
	refusing = legacy.Selector{Backends: nfTables.Backends, Tables: []string{"filter", "mangle"}}
)

// xtables select the tables of the legacy ip_tables in the order in which they are cleaned: first the table that can
// refuse a connection.
var xtables = [...]legacy.Selector{
	{Backends: []legacy.Backend{legacy.Xtables}, Tables: []string{"filter"}},
	{Backends: []legacy.Backend{legacy.Xtables}, Tables: []string{"nat"}},
	{Backends: []legacy.Backend{legacy.Xtables}, Tables: []string{"mangle"}},
}

// ipvs selects what kube-proxy's IPVS mode has beside rules.
var ipvs = legacy.Selector{Backends: []legacy.Backend{legacy.IPVS}}

// Remove removes what remains of kube-proxy's state. Our tables must be in force. Remove leaves what it
// cannot read: after it has removed the rest, StateAfter its error is Unverified. It also leaves what connections
// of the IPVS mode use: then StateAfter its error is Draining. It can be called again after any error, and
// continues with what is left. missing is the name of this node if it has no Node object.
//
// The tables of ip_tables come first, and of these the ones that can refuse connections. IPVS comes
// last, because rules use its sets until the rules are gone.
func (t *Takeover) Remove(ctx context.Context, missing string) error {
	inventory, err := t.Node.Inventory(ctx)
	if err != nil {
		return fmt.Errorf("look for kube-proxy's state: %w", err)
	}
	if t.served = 0; !inventory.Clean() {
		if err := t.serves(ctx, &inventory, missing); err != nil {
			return err
		}
	}
	var selectors []legacy.Selector
	for _, selector := range xtables {
		for _, f := range nft.Families {
			selector.Families = []nft.Family{f}
			selectors = append(selectors, selector)
		}
	}
	selectors = append(selectors, nfTables, ipvs)
	steps := []step{{"wait for packets in flight", waitForPackets}}
	var draining *drainError
	for _, selector := range selectors {
		if names, contents := changed(&inventory, selector); len(names) > 0 {
			steps = append(steps, step{"remove from " + strings.Join(names, ", "), func(ctx context.Context) (string, error) {
				if err := t.serves(ctx, &inventory, missing); err != nil {
					return "", err
				}
				if slices.Contains(selector.Backends, legacy.IPVS) {
					var err error
					if draining, err = t.drain(ctx); err != nil {
						return "", err
					} else if draining != nil {
						return "later: " + draining.Error(), nil
					}
				}
				return strings.Join(contents, "; "), t.Node.Remove(ctx, selector)
			}})
		}
	}
	if len(steps) == 1 { // nothing is going to be removed
		steps = nil
	}
	lookAgain := func(ctx context.Context) (string, error) {
		if len(steps) > 0 { // another program may have removed our tables during the last step
			err := t.serves(ctx, &inventory, missing)
			if loss, ok := errors.AsType[*LossError](err); ok {
				err = &TablesError{loss.reason}
			}
			if err != nil {
				return "", err
			}
		}
		return t.lookAgain(ctx, draining)
	}
	err = perform(ctx, t.Journal, append(steps, step{"look again", lookAgain}))
	if err == nil && draining != nil {
		return draining
	}
	return err
}

// serves returns an error unless our tables, as the kernel holds them now, serve enough of what
// kube-proxy's state serves according to the inventory. permit decides what is enough. serves has a
// socket of its own, because the loop uses the other one meanwhile.
func (t *Takeover) serves(ctx context.Context, inventory *legacy.Inventory, missing string) error {
	client, err := kernel.Open()
	if err != nil {
		return err
	}
	defer client.Close()
	if generation, err := client.Generation(ctx); err == nil && generation == t.served && t.served != 0 {
		return nil // nothing has changed since
	}
	ours, generation, err := client.Read(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("read our tables back: %w", err)
	case !inForce(ours) && t.Beside:
		return errors.New("the daemon has not committed our tables yet; see its log, and run this again")
	case !inForce(ours):
		return &TablesError{"our tables do not exist"}
	}
	if err = t.permit(inventory, ours, missing); err == nil {
		t.served = generation
	}
	return err
}

// A TablesError says that another program has changed our tables since they were verified. The sync loop
// repairs them at once; then Remove can be called again.
type TablesError struct{ reason string }

func (e *TablesError) Error() string {
	return "another program has changed our tables meanwhile, as nft flush ruleset does: " + e.reason
}

// changed returns which parts a takeover changes of those that a selector selects, and what it removes there.
func changed(inventory *legacy.Inventory, sel legacy.Selector) (names, contents []string) {
	for i := range inventory.Parts {
		p := &inventory.Parts[i]
		family := func(f nft.Family) bool { return f.NFT() == p.Family }
		if slices.Contains(sel.Backends, p.Backend) && (sel.Families == nil || slices.ContainsFunc(sel.Families, family)) &&
			(sel.Tables == nil || slices.Contains(sel.Tables, p.Table)) && !p.Clean() && p.Needs == "" {
			names, contents = append(names, p.Name()), append(contents, content(p))
		}
	}
	return names, contents
}

// content says in words how much the removal takes from a part.
func content(p *legacy.Part) string {
	var list []string
	add := func(n int, noun, where string) {
		if n > 0 {
			list = append(list, words.Plural(n, noun)+where)
		}
	}
	add(len(p.Jumps), "jump", "")
	add(len(p.Chains), "chain", "")
	add(p.Rules, "rule", " in them")
	add(len(p.Sets), "set", "")
	add(len(p.Servers), "virtual server", "")
	if p.Device != "" {
		list = append(list, "device "+p.Device)
	}
	return strings.Join(list, ", ")
}

// lookAgain is the last step. It fails if kube-proxy's state is back or cannot be read. draining says that
// IPVS stays for a while.
func (t *Takeover) lookAgain(ctx context.Context, draining *drainError) (string, error) {
	inventory, err := t.Node.Inventory(ctx)
	if err != nil {
		return "", fmt.Errorf("look for kube-proxy's state: %w", err)
	}
	if err := Unread(&inventory); err != nil {
		return "", err
	}
	var left []string
	for i := range inventory.Parts {
		p := &inventory.Parts[i]
		if !p.Clean() && (draining == nil || p.Backend != legacy.IPVS) {
			left = append(left, p.Name())
		}
	}
	if len(left) > 0 {
		return "",
			fmt.Errorf("in %s: kube-proxy's state is back: a kube-proxy that this process does not see must be running; "+
				"stop it and run this again", strings.Join(left, ", "))
	}
	text := "nothing of kube-proxy's is left" + exceptions(&inventory)
	if draining != nil {
		text += " but its IPVS mode: the daemon removes that later, or another migrate apply"
	}
	return text, nil
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
	return fmt.Sprintf(" but chains that %d foreign rules send to, %d of them empty; migrate plan lists them",
		blocked, empty)
}

// A needsError says that a place where kube-proxy may have left state could not be read.
type needsError struct{ part *legacy.Part }

func (e *needsError) Error() string {
	return fmt.Sprintf("look for kube-proxy's state: %s could not be read: needs %s", e.part.Name(), e.part.Needs)
}

// Unread returns an error if a part of an inventory could not be read.
func Unread(inventory *legacy.Inventory) error {
	for i := range inventory.Parts {
		if p := &inventory.Parts[i]; p.Needs != "" {
			return &needsError{p}
		}
	}
	return nil
}
