package sync

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// An entryTable is a kernel's table whose affinity maps packets have filled: it has entries, and
// does to them what batches say.
type entryTable struct {
	table
	mu      sync.Mutex
	entries map[string]map[string]nft.Element // by map
	reads   int
	fails   error // to read the entries
	refuses error // batches with entries
}

func (k *entryTable) Elements(_ context.Context, _ nft.Family, set *nft.Set) (map[string]nft.Element, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reads++
	held := make(map[string]nft.Element)
	for key, entry := range k.entries[set.Name] {
		held[key] = entry
	}
	return held, k.fails
}

func (k *entryTable) Count(_ context.Context, _ nft.Family, set *nft.Set) (n uint32, known bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return uint32(len(k.entries[set.Name])), true, nil
}

func (k *entryTable) Lookup(_ context.Context, _ nft.Family, set *nft.Set, key string) (nft.Element, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	entry, ok := k.entries[set.Name][key]
	return entry, ok, nil
}

func (k *entryTable) Commit(ctx context.Context, batch nft.Batch) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, op := range batch.Ops {
		if op.Elements == nil || !op.Set.Dynamic {
			continue
		}
		if k.refuses != nil {
			return k.refuses
		}
		for _, entry := range op.Elements {
			if op.Verb == nft.Add {
				k.entries[op.Set.Name][entry.Key] = entry.Element
			} else {
				delete(k.entries[op.Set.Name], entry.Key)
			}
		}
	}
	return k.table.Commit(ctx, batch)
}

// count is how many entries there are.
func (k *entryTable) count() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, entries := range k.entries {
		n += len(entries)
	}
	return n
}

// set changes how it behaves.
func (k *entryTable) set(fails, refuses error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fails, k.refuses = fails, refuses
}

// affine is a Service port with affinity and these endpoints.
func affine(endpoints ...byte) *tracker.ServicePort {
	p := udp("web", 1, endpoints...)
	p.Affinity = time.Hour
	return p
}

// runAffine runs a loop that serves a Service port with affinity with the endpoints 1 and 2, and has n
// clients of each in its map.
func runAffine(t *testing.T, k *entryTable, n int) *bubble {
	t.Helper()
	b := newBubble(k, Options{}, affine(1, 2))
	k.entries = make(map[string]map[string]nft.Element)
	for _, set := range b.loop.ruleset.AffinityMaps(nft.IP) {
		k.entries[set.Name] = make(map[string]nft.Element)
	}
	b.loop.CleanAffinity(k)
	b.run(t)
	number := numberOf(t, affine(1, 2))
	name := b.loop.ruleset.AffinityMaps(nft.IP)[number/2%uint32(len(k.entries))].Name
	k.mu.Lock()
	defer k.mu.Unlock()
	for endpoint := byte(1); endpoint <= 2; endpoint++ {
		for i := range n {
			client := netip.AddrFrom4([4]byte{192, endpoint, byte(i >> 8), byte(i)})
			k.entries[name][nft.NumberedKey(nft.IP, number, client)] = nft.Element{
				Data: nft.AddrKey(pod(endpoint)), Life: &nft.Life{Timeout: time.Hour, Expires: time.Minute},
			}
		}
	}
	return b
}

// numberOf is the number of the one group of the Service port.
func numberOf(t *testing.T, p *tracker.ServicePort) uint32 {
	t.Helper()
	r := services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}, AffinitySize: 16})
	r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{p}})
	groups := r.AffinityChanges().Groups
	if len(groups) != 1 {
		t.Fatalf("%d groups, want one", len(groups))
	}
	return groups[0].Number
}

// TestEntriesWait has a kernel that cannot read entries, or refuses to change them: everything else
// is programmed, the complaint is logged once, and the work is done later.
func TestEntriesWait(t *testing.T) {
	const complaint = "session affinity: cannot remove entries of removed endpoints; connections that follow them are " +
		"dropped"
	for _, tt := range []struct {
		name           string
		fails, refuses error
	}{
		{"reading fails", unix.ENOMEM, nil},
		{"the kernel refuses", nil, &kernel.OpError{Family: nft.IP, Set: "affinity-0", Err: unix.EINVAL}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := new(entryTable)
				b := runAffine(t, k, 10)
				k.set(tt.fails, tt.refuses)
				b.change(affine(1))
				b.change(portWith("other", 2, 2))
				pass(10 * time.Minute)
				if b.loop.ruleset.Port(portWith("other", 2, 2).ID) == nil || b.loop.backoff.Failures() != 0 ||
					len(b.loop.skips.skipped) != 0 {
					t.Errorf("%d failed attempts, left out %v", b.loop.backoff.Failures(), b.loop.skips.skipped)
				}
				if n := b.logged(complaint); n != 1 {
					t.Errorf("logged %d times, want once: %v", n, b.logs.All())
				}
				// All maps of both families at the start; then after 50 ms, and twice as long each time up to 30 s.
				if k.reads > 2*layout.AffinityMaps+30 {
					t.Errorf("tried %d times in 10 minutes", k.reads)
				}
				k.set(nil, nil)
				pass(2 * time.Minute)
				if n := k.count(); n != 10 {
					t.Errorf("%d entries, want 10", n)
				}
			})
		})
	}
}

// TestTableIsNotMadeAnewFromAPart changes the definition of a map: only a read can tell what
// else a new table has to hold.
func TestTableIsNotMadeAnewFromAPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(entryTable)
		b := runAffine(t, k, 1)
		for _, held := range b.loop.ruleset.Want()[nft.IP].Sets {
			if held.Set.Dynamic {
				held.Set.Size *= 2
			}
		}
		before, _ := k.seen()
		b.change(affine(1, 2, 3))
		b.change(portWith("other", 2, 2))
		if reads, _ := k.seen(); reads > before+1 {
			t.Errorf("%d reads after %d, want one more at most", reads, before)
		}
		for _, batch := range k.batches {
			if batch.Remakes() {
				t.Errorf("a batch of %d operations makes the table anew", len(batch.Ops))
			}
		}
	})
}

// TestKnownClients: the first commit makes entries of known clients, later ones do not; a kernel that refuses them gets
// everything else.
func TestKnownClients(t *testing.T) {
	for _, refused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			port, calls := affine(1, 2), 0
			k := &entryTable{}
			if refused {
				k.refuses = &kernel.OpError{Family: nft.IP, Set: "affinity-0", Err: unix.EINVAL}
			}
			known := services.KnownClient{
				Frontend: tracker.Frontend{Address: port.ClusterIP, Protocol: port.ID.Protocol, Port: port.Port},
				Client:   netip.MustParseAddr("192.0.2.1"), Endpoint: port.Cluster[0],
			}
			b := newBubble(k, Options{
				Foreign: func(ctx context.Context, _ nft.Tables) ([]nft.ForeignMessage, uint32, error) {
					_, generation, err := k.table.ReadUnless(ctx, nil)
					return nil, generation, err
				},
				KnownClients: func(context.Context) []services.KnownClient { calls++; return []services.KnownClient{known} },
			}, port)
			k.entries = make(map[string]map[string]nft.Element)
			for _, set := range b.loop.ruleset.AffinityMaps(nft.IP) {
				k.entries[set.Name] = make(map[string]nft.Element)
			}
			b.run(t)
			b.change(portWith("other", 2, 2))
			entries, again := 0, calls
			for _, batch := range k.batches {
				for _, op := range batch.Ops {
					if op.Set != nil && op.Set.Dynamic {
						entries += len(op.Elements)
					}
				}
			}
			b.change(portWith("third", 3, 3))
			want := map[bool]int{false: 1}[refused]
			if entries != want || b.reports[0].KnownClients != want || calls != again {
				t.Errorf("refused %v: %d entries committed, %d reported, want %d; asked %d times at the start and %d later",
					refused, entries, b.reports[0].KnownClients, want, again, calls-again)
			}
			if len(b.loop.skips.skipped) != 0 || b.loop.backoff.Failures() != 0 {
				t.Errorf("left out %v, %d failures", b.loop.skips.skipped, b.loop.backoff.Failures())
			}
		})
	}
}
