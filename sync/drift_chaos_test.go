package sync

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestDamageAndChangeAtOnce lets another program damage the tables at random moments of a cluster's
// steady change, so that damage comes before, between and after our commits. In the end the
// kernel holds what is wanted, without an audit.
func TestDamageAndChangeAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for range 8 {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		damageAndChange(t, rand.New(rand.NewPCG(seed, 0)))
	}
}

func damageAndChange(t *testing.T, random *rand.Rand) {
	g := watchServices(t, 20, 3)
	tables := manyTables(20, 3)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-g.reports:
			case <-time.After(time.Millisecond):
			}
			g.feed.set(changedPort(n))
			g.loop.options.Queue.Notify()
		}
	}()
	for range promptRepairs {
		time.Sleep(time.Duration(random.IntN(8000)) * time.Microsecond) // a random moment
		v := vandals[random.IntN(len(vandals))]
		_ = g.stranger.Commit(t.Context(), nft.Batch{Ops: v.ops(tables)}) // what it wants to damage may not be there
	}
	close(stop)
	<-stopped
	g.settle(t)
}

// manyTables is what manyServices come to: what a vandal may damage.
func manyTables(ports, endpoints int) *nft.Table {
	r := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 1024})
	r.Apply(manyServices(ports, endpoints))
	return r.Want()[nft.IP]
}

// changedPort is the n-th change: Services whose endpoints come and go.
func changedPort(n int) *tracker.ServicePort {
	p := portWith("changing-"+string(rune('a'+n%5)), byte(n%5), byte(n%100))
	p.ClusterIP = netip.AddrFrom4([4]byte{10, 96, 200, byte(n % 5)})
	for i := range n % 7 {
		p.Cluster = append(p.Cluster, netip.AddrPortFrom(pod(byte(100+i)), 8080))
	}
	p.Serving = p.Cluster
	return p
}

// settle waits until the loop has nothing left to do, and the kernel holds what is wanted.
func (g *watched) settle(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(lab.Patience); ; {
		select {
		case <-g.reports:
			continue
		case <-time.After(300 * time.Millisecond):
		}
		have, _, err := g.reader.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		batch := change.Diff(have, g.ruleset.Want())
		if batch.Empty() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d operations are left to do, first: %s", len(batch.Ops), batch.Ops[0].Text())
		}
	}
}

// An interrupted kernel is one in which another program commits between our reading and each of
// our first batches.
type interrupted struct {
	*kernel.Client
	stranger *kernel.Client
	left     int // how often it still happens
}

func (k *interrupted) Commit(ctx context.Context, batch nft.Batch) error {
	if k.left > 0 {
		k.left--
		foreign := []nft.Op{
			{Verb: nft.Add, Family: nft.IP, Table: nft.NewTable(nft.IP)},
			{Verb: nft.Add, Family: nft.IP, Chain: &nft.Chain{Name: "foreign"}},
		}
		if err := k.stranger.Commit(ctx, nft.Batch{Ops: foreign}); err != nil {
			return err
		}
	}
	return k.Client.Commit(ctx, batch)
}

func TestDamageBetweenReadAndCommit(t *testing.T) {
	lab.New(t)
	k := &interrupted{Client: lab.Open(t, kernel.Open), stranger: lab.Open(t, kernel.Open), left: 3}
	g := watchWith(t, k, k.Client, manyServices(10, 2))
	g.settle(t)
	if k.left != 0 {
		t.Errorf("it happened %d times too few", k.left)
	}
}
