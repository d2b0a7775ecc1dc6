package migrate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/nft/words"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Rollback removes our tables. No connection notices while kube-proxy's rules are in place under
// them.
type Rollback struct {
	Node   legacy.Node
	Kernel *kernel.Client
	// Stopped waits until no kube-nft programs this network namespace.
	Stopped func(context.Context) error
	// Back returns the node to kube-proxy: its rules must be in place before ours go.
	Back bool
	// Wait waits for these rules as long as the context allows; so does Back if a kube-proxy runs.
	Wait    bool
	Journal func(Entry)
	Notice  func(string)
}

// Run performs the rollback and returns whether there were tables of ours. A second run finds
// nothing to remove.
func (r *Rollback) Run(ctx context.Context) (found bool, err error) {
	if _, err := r.Kernel.Generation(ctx); err != nil { // without the privilege, waiting has no use
		return false, fmt.Errorf("%w; nothing was removed", err)
	}
	if err := r.Stopped(ctx); err != nil {
		return false, err
	}
	ours, _, err := r.Kernel.Read(ctx)
	switch {
	case err != nil:
		return false, fmt.Errorf("%w; nothing was removed", err)
	case len(ours) == 0: // an interrupted start may have left a table of another name
		removed, err := r.Kernel.Remove(ctx)
		switch {
		case len(removed) > 0:
			r.Notice("removed: " + strings.Join(removed, ", "))
		case err == nil:
			r.Notice("nothing to remove: no table kube-nft in this network namespace")
		}
		return false, err
	}
	if r.Back && !r.Wait {
		alive, err := processList(legacy.Processes).steady(ctx, r.Node)
		if err != nil {
			return true, fmt.Errorf("%w; nothing was removed", err)
		}
		r.Wait = len(alive) > 0
	}
	inventory, err := r.Node.Inventory(ctx)
	if err != nil {
		return true, fmt.Errorf("%w; nothing was removed", err)
	}
	serves := func(p legacy.Part) bool { return p.Serves(nft.IP) || p.Serves(nft.IP6) }
	missing, err := lacking(ours, &inventory)
	switch {
	case r.Wait:
	case r.Back && err != nil:
		return true, fmt.Errorf("%w; nothing was removed", err)
	case r.Back && missing != "":
		return true, fmt.Errorf("%s; nothing was removed, our tables go on serving: "+
			"start kube-proxy on this node and run this again with --wait, or remove them without a successor with kube-nft "+
			"cleanup", missing)
	case !r.Back && !slices.ContainsFunc(inventory.Parts, serves):
		r.Notice(noRules(&inventory) + ": new connections to Services are not answered until a proxy is started")
	}
	return true, r.remove(ctx)
}

// noRules says that kube-proxy's rules are missing, as far as visible.
func noRules(inventory *legacy.Inventory) string {
	for i := range inventory.Parts {
		if missing := inventory.Parts[i].Needs; missing != "" {
			return "kube-nft finds no rules of kube-proxy (to find all, it needs " + missing + ")"
		}
	}
	return "no rules of kube-proxy's are in place"
}

// remove removes our tables; no packet falls between them and kube-proxy's rules.
func (r *Rollback) remove(ctx context.Context) error {
	detach := func(ctx context.Context) (string, error) {
		detached, err := r.Kernel.Detach(ctx)
		if len(detached) == 0 {
			return "there are no rules of ours", err
		}
		return "our base chains are gone from " + strings.Join(detached, ", "), err
	}
	remove := func(ctx context.Context) (string, error) {
		clients := r.clients(ctx)
		removed, err := r.Kernel.Remove(ctx)
		if len(removed) == 0 {
			return "there are none", err
		}
		done := strings.Join(removed, ", ") + "; connections that are under way keep their translation"
		if clients > 0 {
			done += fmt.Sprintf("; kube-proxy cannot import affinity entries: %s may change endpoints",
				words.Plural(clients, "client"))
		}
		return done, err
	}
	lookAgain := func(ctx context.Context) (string, error) {
		left, _, err := r.Kernel.Read(ctx)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("our tables are back: a kube-nft daemon that this process does not see must be running; " +
				"stop it and run this again")
		}
		return "no trace of kube-nft is left in nf_tables", err
	}
	steps := []step{{"stop serving new connections", detach}, {"wait for packets in flight", waitForPackets},
		{"remove our tables", remove}, {"look again", lookAgain}}
	if r.Wait {
		steps = append([]step{{"wait for kube-proxy's rules", r.waitForRules}}, steps...)
	}
	return perform(ctx, r.Journal, steps)
}

// clients counts the affinity entries of our tables, as far as they can be counted in a moment.
func (r *Rollback) clients(ctx context.Context) (n int) {
	for _, f := range nft.Families {
		fills, err := r.Kernel.DynamicFill(ctx, f, 1)
		if err != nil {
			continue
		}
		for _, fill := range fills {
			n += int(fill.Count)
		}
	}
	return n
}

// waitForRules waits until kube-proxy serves what our tables serve.
func (r *Rollback) waitForRules(ctx context.Context) (string, error) {
	ours, _, err := r.Kernel.Read(ctx)
	if err != nil {
		return "", err
	}
	for missing := ""; ; {
		inventory, err := r.Node.Inventory(ctx)
		if err == nil {
			missing, err = lacking(ours, &inventory)
		}
		switch {
		case err != nil && (ctx.Err() == nil || missing == ""): // at the end of the time, what is missing says more
			return "", err
		case err == nil && missing == "":
			return "they are in place under ours", nil
		}
		if !retry.Pause(ctx, poll) {
			return "",
				fmt.Errorf("%s; nothing was removed, our tables go on serving: start kube-proxy on this node and run this again, "+
					"or remove them with kube-nft cleanup: %w", missing, context.Cause(ctx))
		}
	}
}

// lacking says what kube-proxy's rules do not serve of what our tables serve; nothing if that is no more
// than a few frontends, which may have been deleted since our tables were written.
func lacking(ours nft.Tables, inv *legacy.Inventory) (string, error) {
	if missing := unserved(ours, inv); len(missing) > 0 {
		return noRules(inv) + " for " + strings.Join(missing, " and "), nil
	}
	local, err := legacy.InterfaceAddresses()
	if err != nil {
		return "", err
	}
	theirs := make(map[tracker.Frontend]bool)
	for _, p := range inv.Parts {
		for _, f := range p.Frontends {
			theirs[f.Frontend] = true
		}
	}
	answers, total := readback.NewAnswers(ours, local), 0
	var lost []legacy.Frontend
	for f, name := range answers.Frontends() {
		if answers.Of(f) != readback.Served {
			continue
		}
		if total++; !theirs[f] {
			lost = append(lost, legacy.Frontend{Frontend: f, Service: name.String()})
		}
	}
	if len(lost) <= few(total) {
		return "", nil
	}
	slices.SortFunc(lost, func(a, b legacy.Frontend) int { return a.Compare(b.Frontend) })
	return fmt.Sprintf("kube-proxy's rules do not serve %d of %d frontends that our tables serve: %s", len(lost), total,
		words.Some(lost, shownLost, ", ")), nil
}

// unserved lists the families, as in "family ip", that have Services in our tables but not in
// kube-proxy's rules.
func unserved(ours nft.Tables, inv *legacy.Inventory) (missing []string) {
	for _, f := range nft.Families {
		table := ours[f]
		if table == nil || len(table.Elements(layout.ServicesMap)) == 0 {
			continue
		}
		serves := func(p legacy.Part) bool { return p.Serves(f) }
		if !slices.ContainsFunc(inv.Parts, serves) {
			missing = append(missing, "family "+f.NFT())
		}
	}
	return missing
}
