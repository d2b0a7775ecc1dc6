package sync

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/entries"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services"
)

// entryReader is what affinityEntries needs of a *kernel.Client of its own.
type entryReader interface {
	Elements(context.Context, nft.Family, *nft.Set) (map[string]nft.Element, error)
	Lookup(ctx context.Context, f nft.Family, s *nft.Set, key string) (element nft.Element, ok bool, err error)
	DynamicFill(ctx context.Context, f nft.Family, limit int) (map[string]kernel.Fill, error)
}

// affinityEntries corrects affinity entries, which packets make. It has a goroutine of its own,
// because to read a large map takes long and no commit must wait for that. The loop hands over what
// a commit changed. The loop also commits the corrections, a few at a time, because the tables may
// belong to its socket. Until then the ruleset drops connections that follow an old entry of a large
// map.
type affinityEntries struct {
	log     *zap.Logger
	reader  entryReader // nil leaves entries until they expire
	bell    chan struct{}
	batches chan entryBatch // to the loop, like changes
	changes chan rulesetChange

	mu     sync.Mutex
	counts map[entryMap]int // entries of each map when it was last looked at
	groups map[entryNumber]entries.Group
	work   entryWork
	latest uint64 // the number of the latest commit

	// The goroutine of run owns the fields below.
	settlements []settlement // of maps that clean has looked through; the earliest first
	retry       backoff
	logged      string // the latest warning: the same one is not logged again
}

type entryNumber struct {
	family nft.Family
	number uint32
}

// entryWork says which maps are to be looked at. takeOver says which group gets the entries of which
// other group.
type entryWork struct {
	maps     map[entryMap]bool
	takeOver map[entryNumber]uint32
}

type entryMap struct {
	family nft.Family
	name   string
}

// A settlement lets the departures of a map settle, up to those of a commit. It is due when no packet
// is under way any more that may have followed an entry that was removed from the map.
type settlement struct {
	entryMap
	commit uint64
	due    time.Time
}

// settling is much longer than any packet is under way through our chains.
const settling = time.Second

// A rulesetChange asks the loop to change the ruleset and to commit the change.
type rulesetChange struct {
	change func(*services.Ruleset)
	answer chan<- error
}

// An entryBatch asks the loop to commit operations on affinity entries.
type entryBatch struct {
	ops    []nft.Op
	answer chan<- error
}

// errTablesUnknown says that the loop does not know at this moment whether the tables are as wanted.
var errTablesUnknown = errors.New("the tables are about to be repaired")

func newAffinityEntries(options *Options) affinityEntries {
	return affinityEntries{
		log: options.Log, bell: make(chan struct{}, 1), batches: make(chan entryBatch), changes: make(chan rulesetChange),
		groups: make(map[entryNumber]entries.Group), counts: make(map[entryMap]int),
		retry: backoff{least: options.RetryMin, most: options.RetryMax, timer: stopped()},
	}
}

// committed takes in what a commit changed. The first commit makes run look at every map, because
// tables of an earlier process may hold departed endpoints.
func (a *affinityEntries) committed(changed []entries.Group, commit uint64) {
	if a.reader == nil {
		return
	}
	a.mu.Lock()
	look := a.latest == 0
	if look {
		a.work.addAll()
	}
	a.latest = commit
	for _, e := range changed {
		id := entryNumber{e.Family, e.Number}
		if len(e.Members) == 0 {
			delete(a.groups, id)
		} else {
			a.groups[id] = e
		}
		if e.Look {
			look = true
			a.work.add(entryMap{e.Family, layout.AffinityMap(e.Number)}, entryNumber{e.Family, e.From}, e.Number)
		}
	}
	a.mu.Unlock()
	if look {
		a.ring()
	}
}

// fewEntries is the largest number of entries with which the loop itself reads a map. That takes
// some milliseconds.
const fewEntries = 1000

// departed returns operations that remove the entries of endpoints that leave with this commit. It
// reads only maps that are not large. run cleans the others afterwards; until then the ruleset drops
// connections that follow such an entry.
func (a *affinityEntries) departed(ctx context.Context, k client, r *services.Ruleset, changed []entries.Group) (ops []nft.Op) {
	groups := make(map[entryMap]map[uint32]entries.Group)
	for _, e := range changed {
		if m := (entryMap{e.Family, layout.AffinityMap(e.Number)}); e.Look {
			if groups[m] == nil {
				groups[m] = make(map[uint32]entries.Group)
			}
			groups[m][e.Number] = e
		}
	}
	if len(groups) == 0 {
		return nil
	}
	// The leaving endpoints are marked before the reading. Otherwise packets could still make an entry
	// that names one, and the removal would miss it.
	var failed error
	if leaving := r.Departing(); len(leaving) > 0 {
		failed = k.Commit(ctx, nft.Batch{Ops: leaving})
	}
	for _, f := range nft.Families {
		for _, set := range r.AffinityMaps(f) {
			m := entryMap{f, set.Name}
			if groups[m] == nil {
				continue
			}
			if failed != nil { // the batch of the sync repeats these operations, and its error says what is wrong
				r.DropDeparted(f, set.Name)
				continue
			}
			held, err := a.heldByFew(ctx, k, m, set)
			if errors.Is(err, unix.ENOENT) { // there is no such map yet
				continue
			}
			if held == nil {
				r.DropDeparted(f, set.Name)
				continue
			}
			var gone []nft.KeyedElement
			for key, entry := range held {
				number, _, _ := nft.SplitNumberedKey(f, key)
				if e, ok := groups[m][number]; ok && !e.MayName(entry.Data) {
					gone = append(gone, nft.KeyedElement{Key: key, Element: entry})
				}
			}
			if len(gone) > 0 {
				ops = append(ops, nft.Op{Verb: nft.Destroy, Family: f, Set: set, Elements: change.SortElements(gone)})
			}
		}
	}
	return ops
}

// heldByFew returns the entries of a map that is not large. It returns nil for a large map and for a
// map that was never looked at, and an error if it cannot read. Some kernels do not count elements;
// then the last look says how large the map is. lookAtFull has such maps looked at each minute.
func (a *affinityEntries) heldByFew(ctx context.Context, k client, m entryMap, set *nft.Set) (map[string]nft.Element, error) {
	n, known, err := k.Count(ctx, m.family, set)
	if err != nil {
		return nil, err
	}
	if known {
		a.counted(m, int(n))
	}
	if n, looked := a.count(m); !looked || n > fewEntries {
		return nil, nil
	}
	held, err := k.Elements(ctx, m.family, set)
	if err != nil {
		return nil, err
	}
	if a.counted(m, len(held)); len(held) > fewEntries { // it has grown since
		return nil, nil
	}
	return held, nil
}

func (a *affinityEntries) count(m entryMap) (n int, looked bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, looked = a.counts[m]
	return n, looked
}

func (a *affinityEntries) counted(m entryMap, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts[m] = n
}

// add notes a map to look at. If from.number is not 0, it also notes that the group into takes over
// the entries of the group from.
func (w *entryWork) add(m entryMap, from entryNumber, into uint32) {
	if w.maps == nil {
		w.maps, w.takeOver = make(map[entryMap]bool), make(map[entryNumber]uint32)
	}
	w.maps[m] = true
	if from.number != 0 {
		w.takeOver[from] = into
	}
}

// addAll notes every map.
func (w *entryWork) addAll() {
	for _, f := range nft.Families {
		for i := range uint32(layout.AffinityMaps) {
			w.add(entryMap{f, layout.AffinityMap(2 * i)}, entryNumber{}, 0)
		}
	}
}

// heard notes the maps into which somebody else has put entries, because these may name anything. If
// events were lost, it notes every map.
func (a *affinityEntries) heard(foreign *change.ForeignChange, isAffinityMap func(string) bool) {
	if foreign == nil || a.reader == nil {
		return
	}
	look := foreign.Lost
	a.mu.Lock()
	if foreign.Lost {
		a.work.addAll()
	}
	for i := range foreign.Events {
		if e := &foreign.Events[i]; e.Listed != nil && isAffinityMap(e.Set.Name) {
			look = true
			a.work.add(entryMap{e.Family, e.Set.Name}, entryNumber{}, 0)
		}
	}
	a.mu.Unlock()
	if look {
		a.ring()
	}
}

func (a *affinityEntries) ring() {
	select {
	case a.bell <- struct{}{}:
	default:
	}
}

// fillInterval is the time between two searches for maps that are nearly full. Every fillsPerLook-th
// search has each map looked through, because a dump of a map that grows meanwhile can miss entries.
const (
	fillInterval = time.Minute
	fillsPerLook = 10
)

// run cleans up until ctx ends. After each clean-up it rests, as staleFlows does.
func (a *affinityEntries) run(ctx context.Context, sets func(nft.Family) []*nft.Set) {
	fill := time.NewTicker(fillInterval)
	defer fill.Stop()
	settle := stopped()
	for fills := 1; ; {
		if len(a.settlements) > 0 {
			settle.Reset(max(0, time.Until(a.settlements[0].due)))
		}
		select {
		case <-ctx.Done():
			return
		case <-settle.C:
			a.settle(ctx)
			continue
		case <-a.bell:
		case <-fill.C:
			a.lookAtFull(ctx, fills%fillsPerLook == 0)
			fills++
		}
		began := time.Now()
		err := a.clean(ctx, sets)
		pause := restRatio * time.Since(began)
		if err != nil {
			pause = max(pause, a.retry.failed()) // this loop sleeps itself: nobody waits for the timer of this backoff
			a.ring()
		} else {
			a.retry.failures = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// settle makes the loop settle the departures that are due.
func (a *affinityEntries) settle(ctx context.Context) {
	n, now := 0, time.Now()
	for n < len(a.settlements) && !a.settlements[n].due.After(now) {
		n++
	}
	due := a.settlements[:n]
	a.settlements = a.settlements[n:]
	err := a.change(ctx, func(r *services.Ruleset) {
		for _, s := range due {
			r.Settle(s.family, s.name, s.commit)
		}
	})
	if err != nil && ctx.Err() == nil { // the ruleset keeps the change, and the loop tries again
		a.log.Debug("endpoints that have left are not forgotten yet", zap.Error(err))
	}
}

// change makes the loop change the ruleset and commit the change.
func (a *affinityEntries) change(ctx context.Context, change func(*services.Ruleset)) error {
	answer := make(chan error, 1)
	return request(ctx, a.changes, rulesetChange{change, answer}, answer)
}

// lookAtFull notes, of the maps in use, those that are nearly full and those whose number of entries
// the kernel does not tell. With all, it notes every map in use.
func (a *affinityEntries) lookAtFull(ctx context.Context, all bool) {
	fills, failed := make(map[nft.Family]map[string]kernel.Fill), make(map[nft.Family]error)
	for _, f := range nft.Families { // before the lock, because the loop waits for it
		fills[f], failed[f] = a.reader.DynamicFill(ctx, f, 0)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	inUse := make(map[entryMap]bool)
	for id := range a.groups {
		inUse[entryMap{id.family, layout.AffinityMap(id.number)}] = true
	}
	for m := range inUse {
		fill, ok := fills[m.family][m.name]
		if ok {
			a.counts[m] = int(fill.Count)
		}
		if all || failed[m.family] == nil && (!ok || fill.Count > fill.Size/4*3) {
			a.work.add(m, entryNumber{}, 0)
		}
	}
}

// clean looks at the noted maps. After an error it notes the remaining ones again.
func (a *affinityEntries) clean(ctx context.Context, sets func(nft.Family) []*nft.Set) (err error) {
	a.mu.Lock()
	work, groups, commit := a.work, len(a.groups), a.latest
	a.work = entryWork{}
	a.mu.Unlock()
	for _, f := range nft.Families {
		takeOver := make(map[uint32]uint32)
		for from, into := range work.takeOver {
			if from.family == f {
				takeOver[from.number] = into
			}
		}
		for _, set := range sets(f) {
			if !work.maps[entryMap{f, set.Name}] || err != nil {
				continue
			}
			if err = a.cleanMap(ctx, f, set, takeOver, func(ops []nft.Op) error { return a.commit(ctx, ops) }, groups); err == nil {
				delete(work.maps, entryMap{f, set.Name})
				a.settlements = append(a.settlements, settlement{entryMap{f, set.Name}, commit, time.Now().Add(settling)})
			}
		}
	}
	if err != nil {
		a.mu.Lock()
		for m := range work.maps {
			a.work.add(m, entryNumber{}, 0)
		}
		for from, into := range work.takeOver {
			a.work.takeOver[from] = into
		}
		a.mu.Unlock()
	}
	switch {
	case ctx.Err() != nil, errors.Is(err, errTablesUnknown): // no failure
	case err == nil:
		a.logged = ""
	case err.Error() != a.logged:
		a.logged = err.Error()
		a.log.Warn("session affinity: entries of removed endpoints stay until they can be removed; connections that follow them are dropped", zap.Error(err))
	}
	return err
}

// cleanMap corrects the wrong entries of one map, and removes surplus ones if it is nearly full.
func (a *affinityEntries) cleanMap(ctx context.Context, f nft.Family, set *nft.Set, takeOver map[uint32]uint32, commit func([]nft.Op) error, groups int) error {
	held, err := a.reader.Elements(ctx, f, set)
	if errors.Is(err, unix.ENOENT) { // it went with the last Service port that has affinity
		return nil
	}
	if err != nil {
		return fmt.Errorf("read affinity map %s: %w", set.Name, err)
	}
	a.counted(entryMap{f, set.Name}, len(held))
	wanted := func(number uint32) entries.Group {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.groups[entryNumber{f, number}]
	}
	changes := entries.Wrong(f, held, wanted, takeOver)
	if err := a.markStrays(ctx, f, set, changes, wanted); err != nil {
		return err
	}
	changes = append(changes, entries.Surplus(f, held, int(set.Size))...)
	for most := min(mostLookups, entriesAtOnce(groups)); len(changes) > 0; {
		n := min(most, len(changes))
		began := time.Now()
		still, err := stillWrong(ctx, f, set, a.reader, changes[:n], wanted)
		if err != nil {
			return fmt.Errorf("look up entries of affinity map %s: %w", set.Name, err)
		}
		for len(still) > 0 {
			err := commit(entries.Ops(f, set, still))
			var op *kernel.OpError
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EEXIST) || !errors.As(err, &op) || op.Element == "" {
				return err
			}
			before := len(still)
			still = slices.DeleteFunc(still, func(c entries.Change) bool { return c.Key == op.Element }) // a packet made it first
			if len(still) == before {
				return err
			}
		}
		changes = changes[n:]
		if len(changes) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(restRatio * time.Since(began)):
		}
	}
	return nil
}

// markStrays tells the ruleset which endpoints are named by entries but are no members. Most likely
// they left before this process started. cleanMap removes their entries after this, and run looks at
// the map again.
func (a *affinityEntries) markStrays(ctx context.Context, f nft.Family, set *nft.Set, changes []entries.Change, wanted func(uint32) entries.Group) error {
	type stray struct {
		number   uint32
		endpoint netip.Addr
	}
	strays := make(map[stray]bool)
	for _, c := range changes {
		number, _, _ := nft.SplitNumberedKey(f, c.Key)
		group := wanted(number)
		if c.Before == nil || c.Now != nil || len(group.Members) == 0 || group.MayName(c.Before.Data) {
			continue
		}
		if endpoint, ok := netip.AddrFromSlice([]byte(c.Before.Data)); ok {
			strays[stray{number, endpoint}] = true
		}
	}
	if len(strays) == 0 {
		return nil
	}
	fresh := false
	err := a.change(ctx, func(r *services.Ruleset) {
		for s := range strays {
			if slices.Contains(wanted(s.number).Members, s.endpoint) { // it has become one meanwhile
				continue
			}
			fresh = r.StrayEntries(f, s.number, s.endpoint) || fresh
		}
	})
	if err == nil && fresh {
		a.mu.Lock()
		a.work.add(entryMap{f, set.Name}, entryNumber{}, 0)
		a.mu.Unlock()
		a.ring()
	}
	return err
}

// stillWrong returns the changes whose entries are still as they were read. Meanwhile packets may have
// removed an entry, or made another one of the same client. The new entry must stay, and a removed one
// must not come back. In the millisecond between this look and the commit, the kernel itself tells
// such entries apart: see entries.Ops.
func stillWrong(ctx context.Context, f nft.Family, set *nft.Set, reader entryReader, changes []entries.Change, wanted func(uint32) entries.Group) (still []entries.Change, err error) {
	for _, c := range changes {
		entry, ok, err := reader.Lookup(ctx, f, set, c.Key)
		if err != nil {
			return nil, err
		}
		number, _, _ := nft.SplitNumberedKey(f, c.Key)
		twin := ok && c.Before != nil && c.Before.Life != nil && c.Before.Life.Twin // either of the two will do
		changed := ok != (c.Before != nil) || ok && entry.Data != c.Before.Data
		if changed && !twin || c.Now != nil && !wanted(number).MayName(c.Now.Data) {
			continue
		}
		still = append(still, c)
	}
	return still, nil
}

// entriesAtOnce is how many entries one commit changes, so that it takes about two milliseconds. An
// entry takes the kernel about a microsecond, and some nanoseconds more for each rule that looks
// something up in its map.
func entriesAtOnce(groups int) int { return max(20, 2000*250/(250+groups)) }

// mostLookups is how many entries are looked up at most before one commit. A lookup takes 10 µs.
const mostLookups = 200

// commit makes the loop commit operations and returns the result.
func (a *affinityEntries) commit(ctx context.Context, ops []nft.Op) error {
	answer := make(chan error, 1)
	return request(ctx, a.batches, entryBatch{ops, answer}, answer)
}

// commitEntries commits operations on affinity entries. While the tables are not known to be as
// wanted, it returns errTablesUnknown.
func (l *Loop) commitEntries(ctx context.Context, ops []nft.Op) error {
	if !l.known || !l.synced {
		return errTablesUnknown
	}
	return l.kernel.Commit(ctx, nft.Batch{Ops: ops})
}
