package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/services"
)

// Seeds returns the entries of kube-proxy's session affinity, for the transaction that carries what
// Foreign has returned. An error names what could not be read of them: their clients choose an
// endpoint anew, or keep it for longer.
//
// A commit that others' commits overtake asks again at once, and a long list takes longer to read
// than the next of those commits takes to come. A list serves for seedsAge, and Left says what is
// left now.
func (t *Takeover) Seeds(ctx context.Context) ([]services.Seed, error) {
	if t.inventory == nil {
		return nil, nil
	}
	if t.seedsRead.IsZero() || time.Since(t.seedsRead) > seedsAge {
		t.seeds, t.seedsErr = seeds(ctx, t.inventory)
		t.seedsRead = time.Now()
	}
	return aged(t.seeds, time.Since(t.seedsRead)), t.seedsErr
}

// seedsAge is how long kube-proxy's session affinity is used after it was read. Clients that came
// to kube-proxy's rules meanwhile choose an endpoint anew.
const seedsAge = 10 * time.Second

// aged returns the seeds that are left after a time.
func aged(list []services.Seed, age time.Duration) (left []services.Seed) {
	for _, s := range list {
		if s.Left -= age; s.Left > 0 {
			left = append(left, s)
		}
	}
	return left
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
