package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/services"
)

// Seeds returns the entries of kube-proxy's session affinity, for the transaction that carries what
// Foreign has returned. An error names what could not be read of them: their clients choose an
// endpoint anew, or keep it for longer.
func (t *Takeover) Seeds(ctx context.Context) ([]services.Seed, error) {
	if t.inventory == nil {
		return nil, nil
	}
	return seeds(ctx, t.inventory)
}

func seeds(ctx context.Context, inventory *legacy.Inventory) (list []services.Seed, err error) {
	entries, problems := inventory.Affinity(ctx)
	for _, e := range entries {
		list = append(list, services.Seed(e))
	}
	return list, errors.Join(problems...)
}

// AffinityCheck says how many clients keep the endpoint to which kube-proxy's session affinity sends
// them. ruleset is what our tables are going to be.
func AffinityCheck(ctx context.Context, inventory *legacy.Inventory, ruleset *services.Ruleset) Check {
	list, err := seeds(ctx, inventory)
	_, used := ruleset.SeedEntries(list, nil)
	c := Check{Level: OK, About: "session affinity", Found: fmt.Sprintf("kube-proxy knows the endpoints of %s", plural(len(list), "client"))}
	switch {
	case err != nil:
		c.Level, c.Found = Warning, nft.Visible(err.Error())
		c.Means = "clients that are not known choose an endpoint anew, once"
	case len(list) > 0:
		c.Means = fmt.Sprintf("%d of them keep theirs; on the way back to kube-proxy all choose anew, once", used)
	}
	return c
}
