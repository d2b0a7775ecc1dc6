package migrate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
)

// A Rollback gives a node back to kube-proxy: it removes our tables. While kube-proxy's rules
// are in place under them, no connection notices.
type Rollback struct {
	Node   legacy.Node
	Kernel *nft.Kernel
	// Wait makes it wait, as long as the context allows, until kube-proxy's rules are in
	// place. Without it our tables go at once.
	Wait    bool
	Journal func(Entry)
}

// Run does it. A second run finds nothing to remove.
func (r *Rollback) Run(ctx context.Context) error {
	t := Takeover{Journal: r.Journal}
	steps := []step{
		{"pass connections on", r.detach}, {"let packets pass", settle},
		{"remove our tables", r.remove}, {"look again", r.lookAgain},
	}
	if r.Wait {
		steps = append([]step{{"wait for kube-proxy's rules", r.waitForRules}}, steps...)
	}
	return t.perform(ctx, steps)
}

// waitForRules waits until kube-proxy serves every family that our tables serve.
func (r *Rollback) waitForRules(ctx context.Context) (string, error) {
	ours, _, err := r.Kernel.Read(ctx)
	if err != nil {
		return "", err
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		inventory, err := r.Node.Take(ctx)
		if err != nil {
			return "", err
		}
		missing := Unserved(ours, &inventory)
		if len(missing) == 0 {
			return "they are in place under ours", nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("kube-proxy serves no Services in %s yet; nothing was removed, our tables go on serving: start kube-proxy on this node and run this again, or remove them with kube-nft cleanup: %w", strings.Join(missing, " and "), ctx.Err())
		}
	}
}

// Unserved lists the families, as in "family ip", with Services in our tables and none in
// kube-proxy's rules.
func Unserved(ours nft.Tables, inv *legacy.Inventory) (missing []string) {
	for _, f := range nft.Families {
		table := ours[f]
		if table == nil || !servesAny(table) {
			continue
		}
		serves := func(p legacy.Part) bool { return p.Serves(f) }
		if !slices.ContainsFunc(inv.Parts, serves) {
			missing = append(missing, "family "+f.NFT())
		}
	}
	return missing
}

// servesAny reports whether the table has frontends.
func servesAny(t *nft.Table) bool {
	services := t.Sets["services"]
	return services != nil && len(services.Map) > 0
}

// detach makes our chains let go of new connections.
func (r *Rollback) detach(ctx context.Context) (string, error) {
	detached, err := r.Kernel.Detach(ctx)
	if len(detached) == 0 {
		return "there are no rules of ours", err
	}
	return "new ones are not ours any more, in " + strings.Join(detached, ", "), err
}

// remove deletes our tables.
func (r *Rollback) remove(ctx context.Context) (string, error) {
	removed, err := r.Kernel.Remove(ctx)
	if len(removed) == 0 {
		return "there are none", err
	}
	return strings.Join(removed, ", ") + "; connections that are under way keep their translation", err
}

// lookAgain is the last step.
func (r *Rollback) lookAgain(ctx context.Context) (string, error) {
	left, _, err := r.Kernel.Read(ctx)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("our tables are back: is a kube-nft daemon running that is hidden from us? Stop it and run this again")
	}
	return "no trace of kube-nft is left in nf_tables", err
}

// Served reports whether kube-proxy's rules send connections to endpoints, in any family.
func Served(inv *legacy.Inventory) bool {
	return slices.ContainsFunc(inv.Parts, func(p legacy.Part) bool { return p.Serves(nft.IP) || p.Serves(nft.IP6) })
}
