package affinityentries

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services/affinity"
)

const (
	groupNumber = 4
	mapSize     = 1 << 12
)

var (
	entryMap      = (&affinity.Settings{Family: nft.IP, Size: mapSize}).Map(layout.AffinityMap(groupNumber))
	stays, leaves = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
)

// members are the changes of a commit after which the group that all entries belong to has these members; none if it is
// gone.
func members(members ...netip.Addr) affinity.Changes {
	g := affinity.Group{Family: nft.IP, Number: groupNumber, List: groupNumber, Timeout: time.Hour}
	if len(members) == 0 {
		g = affinity.Group{Family: nft.IP, Number: groupNumber}
	}
	list := affinity.List{Family: nft.IP, Number: groupNumber, Map: entryMap.Name, Members: members}
	return affinity.Changes{Groups: []affinity.Group{g}, Lists: []affinity.ListChange{{List: list}}}
}

// left are the changes of a commit that takes an endpoint out of the group.
func left(stay ...netip.Addr) affinity.Changes {
	c := members(stay...)
	c.Lists[0].Left = true
	return c
}

// entry is that of a client.
func entry(client int, endpoint netip.Addr) nft.KeyedElement {
	addr := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(192<<24+client))))
	return nft.KeyedElement{Key: nft.NumberedKey(nft.IP, groupNumber, addr), Element: nft.Element{
		Data: nft.AddrKey(endpoint), Life: &nft.Life{Timeout: time.Hour, Expires: time.Minute},
	}}
}

// An entryTable has the entries of the map, and does to them what batches say, as the kernel does.
type entryTable struct {
	mu       sync.Mutex
	entries  map[string]nft.Element
	fails    error  // to read the entries
	largest  int    // the most entries of one batch
	mute     bool   // it does not count them, as Linux before 6.16
	lookedUp func() // runs once, after a lookup
	readings int
}

func newEntryTable() *entryTable { return &entryTable{entries: make(map[string]nft.Element)} }

func (k *entryTable) Elements(context.Context, nft.Family, *nft.Set) (map[string]nft.Element, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.readings++
	return maps.Clone(k.entries), k.fails
}

func (k *entryTable) Count(context.Context, nft.Family, *nft.Set) (n uint32, known bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return uint32(len(k.entries)), !k.mute, nil
}

func (k *entryTable) Lookup(_ context.Context, _ nft.Family, _ *nft.Set, key string) (nft.Element, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.entries[key]
	if k.lookedUp != nil {
		k.lookedUp()
		k.lookedUp = nil
	}
	return e, ok, nil
}

func (k *entryTable) commit(ops []nft.Op) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := make(map[string]bool)
	for _, op := range ops {
		for _, e := range op.Elements {
			keys[e.Key] = true
			if before, ok := k.entries[e.Key]; ok && op.Verb == nft.Add && before.Data != e.Data {
				return unix.EEXIST
			}
		}
	}
	for _, op := range ops {
		for _, e := range op.Elements {
			if op.Verb == nft.Add {
				k.entries[e.Key] = e.Element
			} else {
				delete(k.entries, e.Key)
			}
		}
	}
	k.largest = max(k.largest, len(keys))
	return nil
}

// fail has readings fail; nil ends that.
func (k *entryTable) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fails = err
}

// put adds entries of n clients.
func (k *entryTable) put(first, n int, endpoint netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range n {
		e := entry(first+i, endpoint)
		k.entries[e.Key] = e.Element
	}
}

// held returns how many entries name an endpoint.
func (k *entryTable) held() map[string]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	count := make(map[string]int)
	for _, e := range k.entries {
		count[e.Data]++
	}
	return count
}

// run runs a Cleaner of the entries in the bubble of a test.
func (k *entryTable) run(t *testing.T) *Cleaner {
	t.Helper()
	c := newCleaner(k)
	go c.Run(t.Context())
	go func() {
		for t.Context().Err() == nil {
			serve(t.Context(), c, k.commit)
		}
	}()
	synctest.Wait()
	return c
}

func newCleaner(reader Reader) *Cleaner {
	sets := func(f nft.Family) []*nft.Set { return map[nft.Family][]*nft.Set{nft.IP: {entryMap}}[f] }
	return New(reader, sets, zap.NewNop())
}

// serve does what a Cleaner asks for next, as the loop does.
func serve(ctx context.Context, c *Cleaner, commit func([]nft.Op) error) {
	select {
	case <-ctx.Done():
	case b := <-c.Batches:
		b.Answer <- commit(b.Ops())
	}
}

// check compares how many entries name the endpoint that stays, and the one that leaves.
func (k *entryTable) check(t *testing.T, staying, leaving int) {
	t.Helper()
	if held := k.held(); held[nft.AddrKey(stays)] != staying || held[nft.AddrKey(leaves)] != leaving {
		t.Errorf("%d and %d entries, want %d of the endpoint that stays and %d of the other", held[nft.AddrKey(stays)],
			held[nft.AddrKey(leaves)], staying, leaving)
	}
}

// TestEntriesOfDepartedEndpointsGo, a few at a time, and so does one that the first reading missed. Then the map is
// read no more.
func TestEntriesOfDepartedEndpointsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newEntryTable()
		c := k.run(t)
		c.Committed(members(stays, leaves))
		synctest.Wait() // the first reading is over; it would miss entries that come during it
		k.put(0, 1_000, stays)
		k.put(1_000, 1_000, leaves)
		c.Committed(left(stays))
		synctest.Wait()
		k.check(t, 1_000, 0)
		if k.largest > perBatch {
			t.Errorf("%d entries in one batch", k.largest)
		}
		k.put(2_000, 1, leaves)
		time.Sleep(2 * settling)
		synctest.Wait()
		k.check(t, 1_000, 0)
		time.Sleep(10 * settling)
		synctest.Wait()
		before := k.readings
		time.Sleep(time.Hour)
		synctest.Wait()
		if k.readings != before {
			t.Errorf("%d readings after the last wrong entry has gone", k.readings-before)
		}
	})
}

// TestEntryMissedAtOnce: the reading right after a commit finds nothing wrong. Another one begins a second after the
// commit, since packets change the map meanwhile.
func TestEntryMissedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newEntryTable()
		c := k.run(t)
		c.Committed(left(stays))
		synctest.Wait()
		k.put(0, 1, leaves)
		time.Sleep(2 * settling)
		synctest.Wait()
		k.check(t, 0, 0)
	})
}

// TestReplacedEntryStays: after the last look at entries, packets have replaced one and removed another.
func TestReplacedEntryStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newEntryTable()
		k.put(0, 3, leaves)
		k.lookedUp = func() {
			mine := entry(0, stays)
			k.entries[mine.Key] = mine.Element
			delete(k.entries, entry(1, leaves).Key)
		}
		k.run(t).Committed(left(stays))
		synctest.Wait()
		k.check(t, 1, 0)
	})
}

// TestEntriesOfReturnedEndpointStay: the endpoint is a member again before the batch that would remove its entries.
func TestEntriesOfReturnedEndpointStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newEntryTable()
		k.put(0, 3, leaves)
		c := k.run(t)
		k.lookedUp = func() { c.Committed(members(stays, leaves)) }
		c.Committed(left(stays))
		synctest.Wait()
		k.check(t, 0, 3)
	})
}

// TestMapGoesBeforeTheBatch: a map that the loop removes between the reading and the batch is no failure.
func TestMapGoesBeforeTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newEntryTable()
		k.put(0, 3, leaves)
		core, logs := observer.New(zap.InfoLevel)
		c := newCleaner(k)
		c.log = zap.New(core)
		go c.Run(t.Context())
		c.Committed(left(stays))
		served := 0
		go func() {
			for t.Context().Err() == nil {
				serve(t.Context(), c, func([]nft.Op) error {
					served++
					k.fail(unix.ENOENT)
					return unix.ENOENT
				})
			}
		}()
		time.Sleep(10 * settling)
		synctest.Wait()
		before := k.readings
		time.Sleep(time.Hour)
		synctest.Wait()
		if served != 1 || k.readings != before || logs.Len() > 0 {
			t.Errorf("%d batches, %d readings later; log: %v", served, k.readings-before, logs.All())
		}
	})
}

// TestEntriesWithoutGroupGo when a Service port has no affinity any more, also if it has it again before they are read.
func TestEntriesWithoutGroupGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newEntryTable()
		c := k.run(t)
		c.Committed(members(stays, leaves))
		k.fail(unix.ENOMEM)
		k.put(0, 10, stays)
		k.put(10, 10, leaves)
		c.Committed(left())
		synctest.Wait()
		k.check(t, 10, 10)
		c.Committed(members(stays))
		k.fail(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		k.check(t, 10, 0)
		c.Committed(left())
		time.Sleep(time.Minute)
		synctest.Wait()
		k.check(t, 0, 0)
	})
}

// twoMaps is a Reader of two maps with entries of their own.
type twoMaps struct {
	*entryTable
	second *entryTable
}

var secondMap = (&affinity.Settings{Family: nft.IP, Size: mapSize}).Map(layout.AffinityMap(groupNumber + 2))

func (m *twoMaps) of(s *nft.Set) *entryTable {
	if s == secondMap {
		return m.second
	}
	return m.entryTable
}

func (m *twoMaps) Elements(ctx context.Context, f nft.Family, s *nft.Set) (map[string]nft.Element, error) {
	return m.of(s).Elements(ctx, f, s)
}

func (m *twoMaps) Lookup(ctx context.Context, f nft.Family, s *nft.Set, key string) (nft.Element, bool, error) {
	return m.of(s).Lookup(ctx, f, s, key)
}

// TestMapsDoNotWaitForEachOther: while many entries of one map go, an endpoint leaves that has an entry in another map.
// That entry goes with the next batches, and not after those of the first map.
func TestMapsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &twoMaps{newEntryTable(), newEntryTable()}
		k.put(0, 40*perBatch, leaves)
		c := New(k, func(f nft.Family) []*nft.Set {
			return map[nft.Family][]*nft.Set{nft.IP: {entryMap, secondMap}}[f]
		}, zap.NewNop())
		go c.Run(t.Context())
		c.Committed(left(stays))
		const when = 5 // batches of the first map
		batches, waited := 0, 0
		for len(k.entries)+len(k.second.entries) > 0 {
			serve(t.Context(), c, func(ops []nft.Op) error {
				if ops[0].Set == secondMap {
					waited = batches - when
					return k.second.commit(ops)
				}
				if batches++; batches == when {
					k.second.put(0, 1, leaves)
					changes := left(stays)
					changes.Lists[0].Map = secondMap.Name
					c.Committed(changes)
				}
				return k.commit(ops)
			})
		}
		if waited > 1 || batches != 40 {
			t.Errorf("the entry waited for %d of %d batches", waited, batches)
		}
	})
}

// TestFullMapMakesRoom: of a map that is nearly full, a quarter becomes free for new clients. It is found at the next
// look: after ten seconds, or a minute if the kernel does not count entries.
func TestFullMapMakesRoom(t *testing.T) {
	for _, mute := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			k := newEntryTable()
			k.mute = mute
			c := k.run(t)
			c.Committed(members(stays))
			time.Sleep(lookInterval + time.Second) // the first look
			k.put(0, mapSize, stays)
			time.Sleep(lookInterval)
			synctest.Wait()
			if full := k.held()[nft.AddrKey(stays)] == mapSize; full != mute {
				t.Errorf("ten seconds later the map is full: %t, want %t", full, mute)
			}
			time.Sleep(uncountedInterval - lookInterval)
			synctest.Wait()
			k.check(t, mapSize/4*3, 0)
		})
	}
}

// TestTimeoutOfEntries: entries get the timeout of their group, and keep the rest of their time.
func TestTimeoutOfEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newEntryTable()
		c := k.run(t)
		c.Committed(members(stays))
		k.put(0, 200, stays)
		slower := members(stays)
		slower.Groups[0].Timeout = 2 * time.Hour
		c.Committed(slower)
		time.Sleep(time.Minute)
		synctest.Wait()
		k.check(t, 200, 0)
		entries, _ := k.Elements(t.Context(), nft.IP, entryMap)
		for _, e := range entries {
			if e.Life.Timeout != 2*time.Hour || e.Life.Expires != time.Minute {
				t.Fatalf("an entry lives %+v", e.Life)
			}
		}
	})
}

// TestReadingKeepsFewChanges: further readings find what is wrong beyond mostChanges, also new timeouts, for which no
// commit asks again.
func TestReadingKeepsFewChanges(t *testing.T) {
	defer func(most int) { mostChanges = most }(mostChanges)
	mostChanges = 250
	synctest.Test(t, func(t *testing.T) {
		k := newEntryTable()
		c := k.run(t)
		c.Committed(members(stays, leaves))
		k.put(0, 600, leaves)
		k.put(600, 1000, stays)
		slower := left(stays)
		slower.Groups[0].Timeout = 2 * time.Hour
		c.Committed(slower)
		time.Sleep(time.Minute)
		synctest.Wait()
		k.check(t, 1000, 0)
		entries, _ := k.Elements(t.Context(), nft.IP, entryMap)
		for _, e := range entries {
			if e.Life.Timeout != 2*time.Hour {
				t.Fatalf("an entry lives %+v", e.Life)
			}
		}
	})
}

// An overtakenReader looks entries up, and has packets replace one of them at once.
type overtakenReader struct {
	*kernel.Client
	packet func()
}

func (r *overtakenReader) Lookup(ctx context.Context, f nft.Family, s *nft.Set, key string) (nft.Element, bool, error) {
	e, ok, err := r.Client.Lookup(ctx, f, s, key)
	r.packet()
	return e, ok, err
}

// TestReplacedEntryStaysInKernel removes two entries of an endpoint that has left. After the look at them, one client
// gets an entry with an endpoint that stays: it keeps that, whereas the other client's entry goes.
func TestReplacedEntryStaysInKernel(t *testing.T) {
	lab.New(t)
	k, packets := lab.Open(t, kernel.Open), lab.Open(t, kernel.Open)
	if _, err := k.Probe(t.Context()); err != nil { // so that it destroys, where the kernel can
		t.Fatal(err)
	}
	table := nft.NewTable(nft.IP)
	table.Sets[entryMap.Name] = &nft.Elements{Set: entryMap}
	commit := func(client *kernel.Client, b nft.Batch) {
		if err := client.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	op := func(verb nft.Verb, entries ...nft.KeyedElement) nft.Op {
		return nft.Op{Verb: verb, Family: nft.IP, Set: entryMap, Elements: entries}
	}
	commit(k, change.Diff(nil, nft.Tables{nft.IP: table}))
	replaced, gone := entry(1, leaves), entry(2, leaves)
	commit(k, nft.Batch{Ops: []nft.Op{op(nft.Add, replaced, gone, entry(3, stays))}})
	reader := &overtakenReader{lab.Open(t, kernel.Open), func() {
		commit(packets, nft.Batch{Ops: []nft.Op{op(nft.Delete, replaced)}})
		replaced = entry(1, stays)
		commit(packets, nft.Batch{Ops: []nft.Op{op(nft.Add, replaced)}})
	}}
	c := newCleaner(reader)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	defer func() { stop(); <-done }()
	refused := 0
	c.Committed(left(stays))
	for done := false; !done; {
		serve(t.Context(), c, func(ops []nft.Op) error {
			err := k.Commit(t.Context(), nft.Batch{Ops: ops})
			if errors.Is(err, unix.EEXIST) {
				refused++
			}
			done = err == nil
			return err
		})
	}
	held, err := k.Elements(t.Context(), nft.IP, entryMap)
	if err != nil {
		t.Fatal(err)
	}
	other := entry(3, stays)
	if len(held) != 2 || held[replaced.Key].Data != replaced.Data || held[other.Key].Data != other.Data {
		t.Errorf("entries %+v, want the new one and the one of the endpoint that stays", held)
	}
	if refused != 1 {
		t.Errorf("the kernel refused %d batches, want the one with the replaced entry", refused)
	}
}
