package daemon

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/manifest"
)

// Sizes of the crash test.
const (
	crashStates   = 8   // of the cluster, between which it goes back and forth
	crashServices = 20  // of each family; every state changes all of them
	crashes       = 200 // kills, if they take no longer than crashTime
)

// crashTime bounds the test on a machine that is busy with other things.
const crashTime = 12 * time.Second

// longestLife bounds how long kube-nft lives from the moment from which it may be killed:
// a few times what a commit takes from the change of a file on.
const longestLife = 40 * time.Millisecond

// crashManifest returns the objects of a state of the cluster. No two states have an
// endpoint in common, so there is but one order in which a list can be in the kernel.
func crashManifest(state int) string {
	var objects strings.Builder
	for i := range crashServices {
		for _, family := range []string{"10.%d.%d.1", "fd00:10:%d:%d::1"} {
			name := fmt.Sprintf("web-%d-%d", i, len(family))
			clusterIP := netip.MustParseAddr(fmt.Sprintf(family, 96, i+1))
			pod := netip.MustParseAddr(fmt.Sprintf(family, 200+state, i+1))
			objects.WriteString(lab.Web(name, clusterIP, lab.Addresses(pod, 1+(i+state)%5), func(s *corev1.Service) {
				s.Spec.ExternalIPs = []string{fmt.Sprintf(family, 100+state%3, i+1)}
				s.Spec.ExternalTrafficPolicy = []corev1.ServiceExternalTrafficPolicy{"Cluster", "Local"}[state%2]
			}))
		}
	}
	return objects.String()
}

// A sequence is the states that the kernel may hold.
type sequence struct {
	manifests []string
	rulesets  []nft.Tables
}

// newSequence compiles all states.
func newSequence(t *testing.T) *sequence {
	t.Helper()
	s := &sequence{}
	for state := range crashStates {
		text := crashManifest(state)
		s.manifests, s.rulesets = append(s.manifests, text), append(s.rulesets, compile(t, text))
	}
	return s
}

// compile returns the tables that a kube-nft without flags makes of a manifest.
func compile(t *testing.T, text string) nft.Tables {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	tr := tracker.New(tracker.Config{NodeName: lab.NodeName})
	options := manifest.Options{Refused: func(err error) { t.Errorf("refused: %v", err) }}
	if err := manifest.Load(file, options, tr); err != nil {
		t.Fatal(err)
	}
	ruleset := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 65536})
	ruleset.Apply(tr.Take())
	return ruleset.Want()
}

// stateOf returns which state the tables are in; the test fails if they are in none.
func (s *sequence) stateOf(t *testing.T, have nft.Tables) int {
	t.Helper()
	have = withoutLastPlaces(have)
	for state, want := range s.rulesets {
		if sameEndpoints(have, want) {
			if repair := change.Diff(have, want); !onlyRemoves(repair) {
				t.Fatalf("the kernel holds a mixture: to be state %d it lacks %d operations, the first is\n%s", state,
					len(repair.Ops), repair.Ops[0].Text())
			}
			return state
		}
	}
	t.Fatal("the kernel holds the endpoints of no state")
	return 0
}

// withoutLastPlaces returns tables without first places of lists that no frontend leads to. A commit removes them last,
// for packets under way, in a batch of its own: a kill can come before it.
func withoutLastPlaces(tables nft.Tables) nft.Tables {
	tables = maps.Clone(tables)
	for family, table := range tables {
		copied := *table
		copied.Sets = maps.Clone(table.Sets)
		held := *table.Sets["endpoints-tcp"]
		held.Map = maps.Clone(held.Map)
		maps.DeleteFunc(held.Map, func(key string, _ nft.Element) bool {
			frontend := key[:len(key)-4] // before the index
			_, led := table.Sets["services"].Map[frontend]
			return !led && key == nft.IndexedKey(frontend, 0)
		})
		copied.Sets["endpoints-tcp"] = &held
		tables[family] = &copied
	}
	return tables
}

// onlyRemoves reports whether a batch does nothing but to remove chains and sets: those that
// were made for a commit which never came. Nothing leads to them, or they could not be the
// only difference.
func onlyRemoves(batch nft.Batch) bool {
	return !slices.ContainsFunc(batch.Ops, func(op nft.Op) bool {
		return op.Verb == nft.Add || op.Elements != nil || op.Table != nil
	})
}

// sameEndpoints tells states apart without comparing everything.
func sameEndpoints(a, b nft.Tables) bool {
	return a[nft.IP] != nil && maps.Equal(a[nft.IP].Sets["endpoints-tcp"].Map, b[nft.IP].Sets["endpoints-tcp"].Map)
}

// other returns a state that is not the given one.
func (s *sequence) other(random *rand.Rand, state int) int {
	return (state + 1 + random.IntN(crashStates-1)) % crashStates
}

// churn changes the manifests as fast as it can for a while.
func (s *sequence) churn(t *testing.T, objects lab.Directory, random *rand.Rand, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		objects.Write(t, "web.yaml", s.manifests[random.IntN(crashStates)])
	}
}

// TestCrash kills kube-nft at random moments, while the cluster changes quickly. What it
// leaves behind is one of the cluster's states as a whole, and when it starts again it
// writes no more than the difference.
func TestCrash(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	lab.New(t)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	k, heard, objects, s := lab.Open(t, kernel.Open), lab.ListenToNotices(t), lab.NewDirectory(t), newSequence(t)
	objects.Write(t, "web.yaml", s.manifests[0])
	p := objects.Start(t, "--min-sync-period=0")
	heard.Next(t, lab.About("shop/web-0"))
	crash, start := 0, time.Now()
	for ; crash < crashes && time.Since(start) < crashTime; crash++ {
		s.churn(t, objects, random, time.Duration(random.Int64N(int64(longestLife))))
		kill(t, p)
		have := read(t, k)
		next := s.other(random, s.stateOf(t, have))
		heard.Drain(t)
		objects.Write(t, "web.yaml", s.manifests[next])
		p = objects.Start(t, "--min-sync-period=0")
		if crash%4 == 0 && crash < crashes-1 {
			continue // and be killed before it has finished its start
		}
		want := notices(change.Diff(have, s.rulesets[next]))
		if diff := cmp.Diff(want, lab.Summary(heard.Next(t, changesEndpoints))); diff != "" {
			t.Fatalf("a start wrote something else than the difference (-want +got):\n%s", diff)
		}
	}
	t.Logf("killed %d times", crash)
	p.AwaitLog(t, "kube-nft started")
	p.Stop(t)
	s.stateOf(t, read(t, k))
	if tables := lab.Run(t, "", "nft", "list", "tables"); tables != "table ip kube-nft\ntable ip6 kube-nft\n" {
		t.Errorf("tables in the end:\n%s", tables)
	}
}

// TestTermination ends kube-nft while the cluster changes quickly: it goes at once, with
// success, and leaves the rules in place.
func TestTermination(t *testing.T) {
	t.Parallel()
	lab.New(t)
	random := rand.New(rand.NewPCG(1, 0))
	k, heard, objects, s := lab.Open(t, kernel.Open), lab.ListenToNotices(t), lab.NewDirectory(t), newSequence(t)
	state := 0
	for range 10 {
		state = s.other(random, state)
		objects.Write(t, "web.yaml", s.manifests[state])
		heard.Drain(t)
		p := objects.Start(t, "--min-sync-period=0")
		heard.Next(t, changesEndpoints)
		s.churn(t, objects, random, time.Duration(random.Int64N(int64(longestLife))))
		p.Stop(t)
		state = s.stateOf(t, read(t, k))
	}
}

// changesEndpoints is for the commit that takes the cluster to another state.
func changesEndpoints(n lab.Notice) bool { return n.String() == "add element ip endpoints-tcp" }

// kill ends kube-nft without a warning and returns when it is gone.
func kill(t *testing.T, p *lab.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatalf("kube-nft was gone before it was killed: %v\n%s", err, p.Stderr())
	}
	<-p.Exited()
}

// notices returns what the kernel tells about a batch without new tables. It mentions the
// rules of a chain that is flushed one by one, and a set or chain with its definition.
func notices(batch nft.Batch) map[string]int {
	counts := map[string]int{}
	for _, op := range batch.Ops {
		verb := map[nft.Verb]string{nft.Add: "add", nft.Delete: "delete", nft.Flush: "delete"}[op.Verb]
		switch {
		case op.Elements != nil:
			counts[fmt.Sprintf("%s element %s %s", verb, op.Family.NFT(), op.Set.Name)] += len(op.Elements)
		case op.Set != nil:
			counts[fmt.Sprintf("%s set %s %s", verb, op.Family.NFT(), op.Set.Name)]++
		case op.Verb == nft.Flush:
			counts[fmt.Sprintf("delete rule %s %s", op.Family.NFT(), op.Chain.Name)] += len(op.Chain.Rules)
		case op.Rules != nil:
			counts[fmt.Sprintf("add rule %s %s", op.Family.NFT(), op.Chain.Name)] += len(op.Rules)
		default:
			counts[fmt.Sprintf("%s chain %s %s", verb, op.Family.NFT(), op.Chain.Name)]++
		}
	}
	return counts
}
