package migrate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/nft/words"
)

// KnownClients returns the entries of kube-proxy's session affinity, for the transaction that carries the
// messages of First. Each has the Service's full timeout. An error says which entries KnownClients could
// not read; their clients choose an endpoint anew.
//
// The sync loop repeats a commit at once when another program has committed meanwhile. Reading a long list
// may take longer than that program needs for its next commit. So KnownClients reads again only after
// knownClientsAge.
func (t *Takeover) KnownClients(ctx context.Context) ([]services.KnownClient, error) {
	if t.inventory == nil {
		return nil, nil
	}
	if t.knownClientsAt.IsZero() || time.Since(t.knownClientsAt) > knownClientsAge {
		t.knownClients, t.knownClientsErr = knownClients(ctx, t.inventory)
		t.knownClientsAt = time.Now()
	}
	return t.knownClients, t.knownClientsErr
}

// knownClientsAge is how long KnownClients returns the same entries. Clients that came to kube-proxy's rules
// meanwhile choose an endpoint anew.
const knownClientsAge = 10 * time.Second

func knownClients(ctx context.Context, inventory *legacy.Inventory) (list []services.KnownClient, err error) {
	entries, err := inventory.Affinity(ctx)
	for _, e := range entries {
		list = append(list, services.KnownClient{Frontend: e.Frontend, Client: e.Client, Endpoint: e.Endpoint})
	}
	return list, err
}

// AffinityCheck says how many clients keep the endpoint to which kube-proxy's session affinity sends
// them. ruleset is what our tables are going to be.
func AffinityCheck(ctx context.Context, inventory *legacy.Inventory, ruleset *services.Ruleset) Check {
	list, err := knownClients(ctx, inventory)
	_, used := ruleset.EntriesOfClients(list, nil)
	c := Check{Level: OK, About: "session affinity", Found: fmt.Sprintf("kube-proxy knows the endpoints of %s",
		words.Plural(len(list), "client"))}
	ipvs := func(p legacy.Part) bool { return p.Backend == legacy.IPVS && !p.Clean() }
	switch {
	case err != nil:
		c.Level, c.Found = Warning, nft.Visible(err.Error())
		c.Means = "these clients change their endpoint, once"
	case slices.ContainsFunc(inventory.Parts, ipvs):
		c.Level, c.Found, c.Means = Note, "the endpoints of clients of the IPVS mode are not taken over",
			"these clients change their endpoint, once"
	case len(list) > 0:
		c.Means = fmt.Sprintf("%d of them keep theirs; on the way back to kube-proxy all choose anew, once", used)
	}
	return c
}
