package sync

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/entries"
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
	atOnce  int   // the most entries of one batch
	fill    uint32
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

func (k *entryTable) Count(_ context.Context, _ nft.Family, set *nft.Set) (uint32, bool, error) {
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

func (k *entryTable) DynamicFill(context.Context, nft.Family, int) (map[string]kernel.Fill, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fill := make(map[string]kernel.Fill)
	for name := range k.entries {
		fill[name] = kernel.Fill{Count: k.fill, Size: 16}
	}
	return fill, nil
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
		k.atOnce = max(k.atOnce, len(op.Elements))
		for _, entry := range op.Elements {
			if op.Verb == nft.Add && entry.Life.Timeout > time.Second { // others expire at once
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
func affine(service string, number byte, endpoints ...byte) *tracker.ServicePort {
	p := udp(service, number, endpoints...)
	p.Affinity = time.Hour
	return p
}

// runAffine runs a loop that serves a Service port with affinity with the endpoints 1 and 2, and has n
// clients of each in its map.
func runAffine(t *testing.T, k *entryTable, n int) *bubble {
	t.Helper()
	b := newBubble(k, Options{RetryMin: time.Second, RetryMax: time.Minute}, affine("web", 1, 1, 2))
	k.entries = make(map[string]map[string]nft.Element)
	for _, set := range b.loop.ruleset.AffinityMaps(nft.IP) {
		k.entries[set.Name] = make(map[string]nft.Element)
	}
	b.loop.CleanAffinity(k)
	b.run(t)
	number := numberOf(t, b)
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

// numberOf is the number of the one group that there is.
func numberOf(t *testing.T, b *bubble) uint32 {
	t.Helper()
	b.loop.affinity.mu.Lock()
	defer b.loop.affinity.mu.Unlock()
	for id := range b.loop.affinity.groups {
		return id.number
	}
	t.Fatal("no number")
	return 0
}

// TestEntriesOfDepartedEndpointsGo beside the loop, a few at a time, while other commits go on.
func TestEntriesOfDepartedEndpointsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(entryTable)
		b := runAffine(t, k, 10_000)
		b.change(affine("web", 1, 1))
		b.change(portWith("other", 2, 2))
		if held := b.loop.ruleset.Port(portWith("other", 2, 2).ID); held == nil {
			t.Error("the other Service waits")
		}
		pass(time.Minute)
		if n := k.count(); n != 10_000 {
			t.Errorf("%d entries, want 10,000: those of the endpoint that stays", n)
		}
		if k.atOnce > 2000 {
			t.Errorf("%d entries in one batch", k.atOnce)
		}
	})
}

// TestTimeoutOfEntries rewrites them.
func TestTimeoutOfEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(entryTable)
		b := runAffine(t, k, 100)
		slower := affine("web", 1, 1, 2)
		slower.Affinity = 2 * time.Hour
		b.change(slower)
		pass(time.Minute)
		for _, entries := range k.entries {
			for _, entry := range entries {
				if entry.Life.Timeout != 2*time.Hour || entry.Life.Expires != time.Minute {
					t.Fatalf("an entry lives %+v", entry.Life)
				}
			}
		}
		if n := k.count(); n != 200 {
			t.Errorf("%d entries, want 200", n)
		}
	})
}

// TestEntriesOfNobodyGo takes affinity away, and gives it back before they have been looked at.
func TestEntriesOfNobodyGo(t *testing.T) {
	for _, back := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			k := new(entryTable)
			b := runAffine(t, k, 10)
			k.set(unix.ENOMEM, nil)
			b.change(udp("web", 1, 1, 2))
			want := 0
			if back {
				b.change(affine("web", 1, 2))
				want = 10
			}
			k.set(nil, nil)
			pass(5 * time.Minute)
			if n := k.count(); n != want {
				t.Errorf("affinity comes back %v: %d entries, want %d", back, n, want)
			}
		})
	}
}

// TestEntriesWait has a kernel that cannot read entries, or refuses to change them: everything else
// is programmed, the complaint is logged once, and the work is done later.
func TestEntriesWait(t *testing.T) {
	const complaint = "session affinity: entries of removed endpoints stay until they can be removed; connections that follow them are dropped"
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
				b.change(affine("web", 1, 1))
				b.change(portWith("other", 2, 2))
				pass(10 * time.Minute)
				if b.loop.ruleset.Port(portWith("other", 2, 2).ID) == nil || b.loop.retry.failures != 0 || len(b.loop.refusals.leftOut) != 0 {
					t.Errorf("%d failed attempts, left out %v", b.loop.retry.failures, b.loop.refusals.leftOut)
				}
				if n := b.logged(complaint); n != 1 {
					t.Errorf("logged %d times, want once: %v", n, b.logs.All())
				}
				if k.reads > 30 { // 8 of them at the start
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

// TestLocalListTakesEntriesOver when a traffic policy becomes Local: a client of an endpoint on
// this node stays there.
func TestLocalListTakesEntriesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(entryTable)
		b := runAffine(t, k, 10)
		local := affine("web", 1, 1, 2)
		local.InternalLocal, local.Local, local.NodePort = true, local.Cluster[:1], 30080
		b.change(local)
		pass(time.Minute)
		if n := k.count(); n != 30 {
			t.Errorf("%d entries, want 20 and those of the 10 clients of the local endpoint", n)
		}
	})
}

// TestFullMapIsShared looks at a map that is nearly full, and not at one that is not.
func TestFullMapIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(entryTable)
		runAffine(t, k, 10)
		looks := func(fill uint32, during time.Duration) (reads int) { // of maps that are filled so far
			k.mu.Lock()
			k.fill, k.reads = fill, 0
			k.mu.Unlock()
			pass(during)
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.reads
		}
		if reads := looks(0, 5*fillInterval); reads != 0 {
			t.Errorf("%d reads of maps that have room", reads)
		}
		if looks(15, 2*fillInterval) == 0 {
			t.Error("a map that is nearly full was not looked at")
		}
	})
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
		b.change(affine("web", 1, 1, 2, 3))
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

// TestOldEntriesKeepNobodyOut has a kernel that refuses the entries that an older version kept:
// the Services are programmed without them.
func TestOldEntriesKeepNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		port := affine("web", 1, 1, 2)
		k := &oldTable{entryTable: entryTable{refuses: &kernel.OpError{Family: nft.IP, Set: "affinity-0", Err: unix.EINVAL}}}
		b := newBubble(k, Options{RetryMin: time.Second, RetryMax: time.Minute}, port)
		b.run(t)
		if b.loop.retry.failures != 0 || len(b.loop.refusals.leftOut) != 0 || len(b.reports) != 1 {
			t.Errorf("%d failed attempts, left out %v, %d commits", b.loop.retry.failures, b.loop.refusals.leftOut, len(b.reports))
		}
		adopts := func(batch nft.Batch) bool {
			return slices.ContainsFunc(batch.Ops, func(op nft.Op) bool { return op.Elements != nil && op.Set.Dynamic })
		}
		if !k.offered || slices.ContainsFunc(k.batches, adopts) {
			t.Errorf("entries were offered %v", k.offered)
		}
	})
}

// TestSeeds: the first commit makes entries of seeds, later ones do not; a kernel that refuses them gets
// everything else.
func TestSeeds(t *testing.T) {
	for _, refused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			port, calls := affine("web", 1, 1, 2), 0
			k := &entryTable{}
			if refused {
				k.refuses = &kernel.OpError{Family: nft.IP, Set: "affinity-0", Err: unix.EINVAL}
			}
			seed := services.Seed{
				Frontend: tracker.Frontend{Address: port.ClusterIP, Protocol: port.ID.Protocol, Port: port.Port},
				Client:   netip.MustParseAddr("192.0.2.1"), Endpoint: port.Cluster[0], Left: time.Minute,
			}
			b := newBubble(k, Options{
				RetryMin: time.Second, RetryMax: time.Minute,
				Foreign: func(ctx context.Context, _ nft.Tables) ([]nft.ForeignMessage, uint32, error) {
					_, generation, err := k.table.Read(ctx)
					return nil, generation, err
				},
				Seeds: func(context.Context) []services.Seed { calls++; return []services.Seed{seed} },
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
			if entries != want || b.reports[0].Seeds != want || calls != again {
				t.Errorf("refused %v: %d entries committed, %d reported, want %d; asked %d times at the start and %d later",
					refused, entries, b.reports[0].Seeds, want, again, calls-again)
			}
			if len(b.loop.refusals.leftOut) != 0 || b.loop.retry.failures != 0 {
				t.Errorf("left out %v, %d failures", b.loop.refusals.leftOut, b.loop.retry.failures)
			}
		})
	}
}

// An oldTable holds the affinity map that an older version gave to the Service port web.
type oldTable struct {
	entryTable
	offered bool // entries were to be taken over
}

const oldMap = "affinity-n73irusl-ns-web-udp-8080"

func (k *oldTable) Read(ctx context.Context) (nft.Tables, uint32, error) {
	_, generation, err := k.table.Read(ctx)
	t := nft.NewTable(nft.IP)
	t.Sets[oldMap] = &nft.Elements{Set: &nft.Set{Name: oldMap, Key: []nft.Field{nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr}, Dynamic: true}}
	return nft.Tables{nft.IP: t}, generation, err
}

func (k *oldTable) Elements(context.Context, nft.Family, *nft.Set) (map[string]nft.Element, error) {
	return map[string]nft.Element{nft.AddrKey(netip.MustParseAddr("192.0.2.1")): {Data: nft.AddrKey(pod(1))}}, nil
}

func (k *oldTable) Commit(ctx context.Context, batch nft.Batch) error {
	err := k.entryTable.Commit(ctx, batch)
	k.offered = k.offered || errors.Is(err, unix.EINVAL)
	return err
}

// TestOvertakenEntries: an entry that packets have removed since it was read, or replaced by another one
// of the same client, is left alone.
func TestOvertakenEntries(t *testing.T) {
	set := &nft.Set{Name: "affinity-0", Key: []nft.Field{nft.FieldIndex, nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr}, Dynamic: true, Size: 16}
	group := entries.Group{Family: nft.IP, Number: 2, Members: []netip.Addr{pod(1).Prev(), pod(1)}, Timeout: time.Hour}
	key := func(client byte) string {
		return nft.NumberedKey(nft.IP, group.Number, netip.AddrFrom4([4]byte{192, 0, 2, client}))
	}
	entry := func(endpoint netip.Addr, twin bool) nft.Element {
		return nft.Element{Data: nft.AddrKey(endpoint), Life: &nft.Life{Timeout: time.Hour, Twin: twin}}
	}
	old, now, left := entry(pod(1), false), entry(pod(1).Prev(), false), entry(pod(9), false)
	twin := entry(pod(1), true)
	kernel := &entryTable{entries: map[string]map[string]nft.Element{set.Name: {key(1): old, key(2): now, key(4): now, key(6): now}}}
	var got []byte
	still, err := stillWrong(t.Context(), nft.IP, set, kernel, []entries.Change{
		{Key: key(1), Before: &old},            // as it was read
		{Key: key(2), Before: &old},            // another one by now
		{Key: key(3), Before: &old, Now: &old}, // gone
		{Key: key(4), Now: &old},               // to be taken over, but come by itself
		{Key: key(5), Now: &left},              // of an endpoint that has left since
		{Key: key(6), Before: &twin},           // one of two
		{Key: key(7), Now: &old},               // to be taken over
	}, func(uint32) entries.Group { return group })
	for _, c := range still {
		got = append(got, c.Key[len(c.Key)-1])
	}
	if want := []byte{1, 6, 7}; err != nil || !slices.Equal(got, want) {
		t.Errorf("clients %v, %v, want %v", got, err, want)
	}
}

// TestDepartedEndpointsSettle: while entries name an endpoint that has left, it stands in the set of
// departed endpoints; of a large map, connections to it are dropped. When the entries are gone, and
// packets that may have followed them, so is it.
func TestDepartedEndpointsSettle(t *testing.T) {
	for _, clients := range []int{10, 10_000} {
		synctest.Test(t, func(t *testing.T) {
			k := new(entryTable)
			b := runAffine(t, k, clients)
			pass(10 * settling)
			b.change(affine("web", 1, 1))
			count := k.held
			large := map[bool]int{true: 1}[clients > fewEntries]
			if departed, dropped := count(layout.DepartedSet), count(layout.DroppedSet); departed != 1 || dropped != large {
				t.Errorf("%d clients: %d departed endpoints and %d to drop, want 1 and %d", clients, departed, dropped, large)
			}
			if first := k.first(layout.DepartedSet); len(first.Ops) != 1 {
				t.Errorf("%d clients: the entries are read before the endpoint is in the set of departed ones: %d operations come with it", clients, len(first.Ops))
			}
			pass(time.Minute)
			if n := k.count(); n != clients || count(layout.DepartedSet)+count(layout.DroppedSet) != 0 {
				t.Errorf("%d clients: %d entries, %d departed endpoints, %d to drop after a minute", clients, n, count(layout.DepartedSet), count(layout.DroppedSet))
			}
		})
	}
}

// first is the first batch that changes a set.
func (k *entryTable) first(set string) nft.Batch {
	k.mu.Lock()
	defer k.mu.Unlock()
	changes := func(op nft.Op) bool { return op.Elements != nil && op.Set.Name == set }
	at := slices.IndexFunc(k.batches, func(b nft.Batch) bool { return slices.ContainsFunc(b.Ops, changes) })
	return k.batches[at]
}

// held counts what batches have added to a set and not deleted.
func (k *entryTable) held(set string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := make(map[string]bool)
	for _, batch := range k.batches {
		for _, op := range batch.Ops {
			for _, e := range op.Elements {
				if op.Set.Name == set && op.Verb == nft.Add {
					keys[e.Key] = true
				} else if op.Set.Name == set {
					delete(keys, e.Key)
				}
			}
		}
	}
	return len(keys)
}

// TestStrayEntriesAreMarked: of an endpoint that left before the start, entries are found at the first
// look. It is marked before they go, so that no packet under way makes one anew.
func TestStrayEntriesAreMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(entryTable)
		b := runAffine(t, k, 10)
		pass(10 * settling)
		number := numberOf(t, b)
		name := layout.AffinityMap(number)
		k.mu.Lock()
		k.entries[name][nft.NumberedKey(nft.IP, number, netip.MustParseAddr("192.0.2.1"))] = nft.Element{
			Data: nft.AddrKey(pod(9)), Life: &nft.Life{Timeout: time.Hour, Expires: time.Minute},
		}
		batches := len(k.batches)
		k.mu.Unlock()
		pass(2 * fillsPerLook * fillInterval)
		k.mu.Lock()
		defer k.mu.Unlock()
		var marked, removed, settled int // after how many batches
		for i, batch := range k.batches[batches:] {
			for _, op := range batch.Ops {
				switch {
				case op.Set.Name == layout.DepartedSet && op.Verb == nft.Add:
					marked = i + 1
				case op.Set.Name == name && op.Verb == nft.Destroy:
					removed = i + 1
				case op.Set.Name == layout.DepartedSet && op.Verb == nft.Delete:
					settled = i + 1
				}
			}
		}
		if marked != 1 || removed != 2 || settled != 3 {
			t.Errorf("marked with batch %d, removed with %d, settled with %d", marked, removed, settled)
		}
	})
}

// TestFirstLookAtGrownMap: a map that the kernel counts is not read by the loop if it is large, though nobody
// has looked at it since it grew; a kernel that does not count leaves it to the last look.
func TestFirstLookAtGrownMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(entryTable)
		b := runAffine(t, k, 10_000)
		r, m := b.loop.ruleset, entryMap{nft.IP, layout.AffinityMap(numberOf(t, b))}
		for _, tt := range []struct {
			name   string
			looked bool
			found  int
			counts bool
			reads  int
		}{
			{"counted", true, 0, true, 0},
			{"not counted, small at the last look", true, 10, false, 1},
			{"not counted, never looked at", false, 0, false, 0},
		} {
			a := newAffinityEntries(&Options{})
			if tt.looked {
				a.counted(m, tt.found)
			}
			before := k.reads
			for _, set := range r.AffinityMaps(nft.IP) {
				if set.Name != m.name {
					continue
				}
				held, err := a.heldByFew(t.Context(), countless{k, tt.counts}, m, set)
				if held != nil || err != nil || k.reads-before != tt.reads {
					t.Errorf("%s: %d entries, %v, after %d reads, want none after %d", tt.name, len(held), err, k.reads-before, tt.reads)
				}
			}
		}
	})
}

// A countless kernel may not tell how many elements a set has.
type countless struct {
	*entryTable
	counts bool
}

func (k countless) Count(ctx context.Context, f nft.Family, set *nft.Set) (uint32, bool, error) {
	n, _, err := k.entryTable.Count(ctx, f, set)
	return n, k.counts, err
}
