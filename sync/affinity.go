package sync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
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

// affinityEntries takes care of affinity entries, which packets make, in a goroutine of its own:
// to read a large map takes long, and no commit waits for that. The loop hands over what a commit
// changed, and commits what is to be done to the entries, a few at a time: the tables may belong to
// its socket. Until then a connection may follow an old entry, once.
type affinityEntries struct {
	log     *zap.Logger
	reader  entryReader // nil leaves entries until they expire
	bell    chan struct{}
	batches chan entryBatch // for the loop

	mu     sync.Mutex
	counts map[entryMap]int // of entries, as of the last look at a map
	groups map[entryNumber]services.Entries
	work   entryWork

	// The rest is owned by the goroutine of run.
	retry  backoff
	logged string // the latest complaint: one that goes on is not repeated
}

type entryNumber struct {
	family nft.Family
	number uint32
}

// entryWork is which maps have to be looked at, and which groups take over entries.
type entryWork struct {
	maps     map[entryMap]bool
	takeOver map[entryNumber]uint32
}

type entryMap struct {
	family nft.Family
	name   string
}

// An entryBatch is what the loop is asked to commit.
type entryBatch struct {
	ops    []nft.Op
	answer chan<- error
}

// errTablesUnknown says that the tables are not as the loop wants them at this moment.
var errTablesUnknown = errors.New("the tables are about to be repaired")

func newAffinityEntries(options *Options) affinityEntries {
	return affinityEntries{
		log: options.Log, bell: make(chan struct{}, 1), batches: make(chan entryBatch),
		groups: make(map[entryNumber]services.Entries), counts: make(map[entryMap]int),
		retry: backoff{least: options.RetryMin, most: options.RetryMax, timer: stopped()},
	}
}

// committed takes in what a commit has changed.
func (a *affinityEntries) committed(changed []services.Entries) {
	if len(changed) == 0 || a.reader == nil {
		return
	}
	a.mu.Lock()
	look := false
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

// fewEntries is how many entries a map has at most that is read in the loop: that takes some
// milliseconds.
const fewEntries = 1000

// departed returns the removal of entries of endpoints that leave with this commit, in maps that are
// not large: no connection follows these. Of the others, run takes care afterwards.
func (a *affinityEntries) departed(ctx context.Context, k client, sets func(nft.Family) []*nft.Set, changed []services.Entries) (ops []nft.Op) {
	groups := make(map[entryMap]map[uint32]services.Entries)
	for _, e := range changed {
		if m := (entryMap{e.Family, layout.AffinityMap(e.Number)}); e.Look {
			if groups[m] == nil {
				groups[m] = make(map[uint32]services.Entries)
			}
			groups[m][e.Number] = e
		}
	}
	for _, f := range nft.Families {
		for _, set := range sets(f) {
			m := entryMap{f, set.Name}
			if groups[m] == nil || a.count(m) > fewEntries {
				continue
			}
			held, err := k.Elements(ctx, f, set)
			if err != nil { // there is no such map yet, or run will say what is wrong
				continue
			}
			if a.counted(m, len(held)); len(held) > fewEntries { // for the next time
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

func (a *affinityEntries) count(m entryMap) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts[m]
}

func (a *affinityEntries) counted(m entryMap, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts[m] = n
}

// add notes a map, and with from.number not zero that a group takes over the entries of another.
func (w *entryWork) add(m entryMap, from entryNumber, into uint32) {
	if w.maps == nil {
		w.maps, w.takeOver = make(map[entryMap]bool), make(map[entryNumber]uint32)
	}
	w.maps[m] = true
	if from.number != 0 {
		w.takeOver[from] = into
	}
}

func (a *affinityEntries) ring() {
	select {
	case a.bell <- struct{}{}:
	default:
	}
}

// fillInterval is how often it is looked for maps that are nearly full.
const fillInterval = time.Minute

// run cleans up until ctx ends. After each clean-up it rests, as staleFlows does.
func (a *affinityEntries) run(ctx context.Context, sets func(nft.Family) []*nft.Set) {
	fill := time.NewTicker(fillInterval)
	defer fill.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.bell:
		case <-fill.C:
			a.lookAtFull(ctx)
		}
		began := time.Now()
		err := a.clean(ctx, sets)
		pause := restRatio * time.Since(began)
		if err != nil {
			pause = max(pause, a.retry.failed()) // nobody waits for the timer of this backoff
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

// lookAtFull notes the maps that are nearly full, and those of which the kernel does not say how
// full they are.
func (a *affinityEntries) lookAtFull(ctx context.Context) {
	fills, failed := make(map[nft.Family]map[string]kernel.Fill), make(map[nft.Family]error)
	for _, f := range nft.Families { // before the lock, on which the loop waits
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
		if failed[m.family] == nil && (!ok || fill.Count > fill.Size/4*3) {
			a.work.add(m, entryNumber{}, 0)
		}
	}
}

// clean does what is to be done. What could not be done waits for the next time.
func (a *affinityEntries) clean(ctx context.Context, sets func(nft.Family) []*nft.Set) (err error) {
	a.mu.Lock()
	work, groups := a.work, len(a.groups)
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
		a.log.Warn("session affinity: entries of removed endpoints stay until they can be removed; a client may follow one once", zap.Error(err))
	}
	return err
}

// cleanMap brings the entries of one map in order.
func (a *affinityEntries) cleanMap(ctx context.Context, f nft.Family, set *nft.Set, takeOver map[uint32]uint32, commit func([]nft.Op) error, groups int) error {
	held, err := a.reader.Elements(ctx, f, set)
	if errors.Is(err, unix.ENOENT) { // it went with the last Service port that has affinity
		return nil
	}
	if err != nil {
		return fmt.Errorf("read affinity map %s: %w", set.Name, err)
	}
	a.counted(entryMap{f, set.Name}, len(held))
	wanted := func(number uint32) services.Entries {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.groups[entryNumber{f, number}]
	}
	changes := services.WrongEntries(f, held, wanted, takeOver)
	changes = append(changes, services.SurplusEntries(f, held, int(set.Size))...)
	for most := min(mostLookups, entriesAtOnce(groups)); len(changes) > 0; {
		n := min(most, len(changes))
		began := time.Now()
		still, err := stillWrong(ctx, f, set, a.reader, changes[:n], wanted)
		if err != nil {
			return fmt.Errorf("look up entries of affinity map %s: %w", set.Name, err)
		}
		for len(still) > 0 {
			err := commit(services.EntryOps(f, set, still))
			var op *kernel.OpError
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EEXIST) || !errors.As(err, &op) || op.Element == "" {
				return err
			}
			before := len(still)
			still = slices.DeleteFunc(still, func(c services.EntryChange) bool { return c.Key == op.Element }) // packets were faster
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

// stillWrong returns the changes of entries that are as they were read. Packets may have removed an
// entry since, and made another one of the same client: it is not to be deleted, and one that was
// removed is not to come back. What happens to an entry in the millisecond between this look and the
// commit, the kernel tells apart: see services.EntryOps.
func stillWrong(ctx context.Context, f nft.Family, set *nft.Set, reader entryReader, changes []services.EntryChange, wanted func(uint32) services.Entries) (still []services.EntryChange, err error) {
	for _, c := range changes {
		entry, ok, err := reader.Lookup(ctx, f, set, c.Key)
		if err != nil {
			return nil, err
		}
		number, _, _ := nft.SplitNumberedKey(f, c.Key)
		twin := ok && c.Before != nil && c.Before.Life != nil && c.Before.Life.Twin // which of the two, does not matter
		changed := ok != (c.Before != nil) || ok && entry.Data != c.Before.Data
		if changed && !twin || c.Now != nil && !wanted(number).MayName(c.Now.Data) {
			continue
		}
		still = append(still, c)
	}
	return still, nil
}

// entriesAtOnce is how many entries are changed with one commit, so that it takes about two
// milliseconds: an entry takes the kernel about a microsecond, and some nanoseconds for each rule
// that looks something up in its map.
func entriesAtOnce(groups int) int { return max(20, 2000*250/(250+groups)) }

// mostLookups is how many entries are looked up before they are changed: a look takes 10 µs.
const mostLookups = 200

// commit has the loop commit operations, and waits for the answer.
func (a *affinityEntries) commit(ctx context.Context, ops []nft.Op) error {
	answer := make(chan error, 1)
	return request(ctx, a.batches, entryBatch{ops, answer}, answer)
}

// commitEntries commits what the clean-up of affinity entries asks for.
func (l *Loop) commitEntries(ctx context.Context, ops []nft.Op) error {
	if !l.known || !l.synced {
		return errTablesUnknown
	}
	return l.kernel.Commit(ctx, nft.Batch{Ops: ops})
}
