package kernel

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/nfttest"
	"github.com/kube-nft/kube-nft/nft/services"
)

// TestRemoveKernel removes our tables and nothing else.
func TestRemoveKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	commit(t, k, nfttest.FrontendBatch(1, nft.Drop))
	lab.Run(t, "add table ip6 kube-nft-probe\nadd table inet kube-nft\nadd table ip kube-nft-other\n", "nft", "-f", "-")
	removed, err := k.Remove(t.Context())
	if got := strings.Join(removed, ", "); err != nil || got != "table ip kube-nft, table ip6 kube-nft-probe" {
		t.Errorf("removed %s (%v)", got, err)
	}
	want := "table inet kube-nft\ntable ip kube-nft-other\n"
	if got := lab.Run(t, "", "nft", "list", "tables"); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if removed, err := k.Remove(t.Context()); err != nil || len(removed) != 0 {
		t.Errorf("removed %v again (%v)", removed, err)
	}
}

// TestDetachKernel empties the chains that translate destinations and leaves the others.
func TestDetachKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	want := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 16}).Want()
	commit(t, k, change.Diff(nil, want))
	detached, err := k.Detach(t.Context())
	if err != nil || len(detached) != 2 {
		t.Fatalf("detached %v (%v)", detached, err)
	}
	have, generation, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	back := change.Diff(have, want)
	for _, op := range back.Ops {
		if op.Verb == nft.Add {
			missing = append(missing, op.Family.NFT()+" "+op.Chain.Name)
		}
	}
	if diff := cmp.Diff([]string{"ip nat-output", "ip nat-prerouting", "ip6 nat-output", "ip6 nat-prerouting"},
		missing); diff != "" {
		t.Errorf("what it takes to come back (-want +got):\n%s", diff)
	}
	if detached, err := k.Detach(t.Context()); err != nil || len(detached) != 0 {
		t.Errorf("detached %v again (%v)", detached, err)
	}
	if now, err := k.Generation(t.Context()); err != nil || now != generation {
		t.Errorf("the second time committed: generation %d after %d (%v)", now, generation, err)
	}
}
