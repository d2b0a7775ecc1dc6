// Package affinityentries removes affinity entries of endpoints that have left, and some of maps that are nearly
// full. Make a Cleaner with New, start Run, call Committed after each commit, and serve the channel Batches:
//
//	cleaner := affinityentries.New(client, ruleset.AffinityMaps, log)
//	go cleaner.Run(ctx)
//	...
//	cleaner.Committed(ruleset.AffinityChanges())
//
// Packets make the entries, so only a reading of the map shows which there are, and to read a large map takes long. So
// a Cleaner has a goroutine and a kernel client of its own. It does not commit, because only the loop's socket may
// write to owned tables.
package affinityentries

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
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services/affinity"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// Reader is what a Cleaner needs of a *kernel.Client. No other goroutine may use it.
type Reader interface {
	Elements(context.Context, nft.Family, *nft.Set) (map[string]nft.Element, error)
	Count(ctx context.Context, f nft.Family, s *nft.Set) (n uint32, known bool, err error)
	Lookup(ctx context.Context, f nft.Family, s *nft.Set, key string) (element nft.Element, ok bool, err error)
}

// ErrTablesUnknown is the answer to a Batch while the tables are about to be repaired.
var ErrTablesUnknown = errors.New("the tables are about to be repaired")

// A Batch asks the loop to commit operations on affinity entries. The loop calls Ops when it has told the Cleaner of
// every commit: an endpoint may have come since the entry was read, and its entries stay.
type Batch struct {
	Ops    func() []nft.Op
	Answer chan<- error
}

// A Cleaner reads affinity maps after commits that may leave wrong entries behind, and has the loop remove these.
type Cleaner struct {
	Batches chan Batch // requests to the loop

	log     *zap.Logger
	reader  Reader
	maps    func(nft.Family) []*nft.Set
	wake    retry.Wake // has a value when there may be something to do
	failing quota.Once

	mu     sync.Mutex
	states map[mapID]*mapState

	jobs map[mapID]*job // under way; Run's goroutine owns it
}

type mapID struct {
	family nft.Family
	name   string
}

// A mapState is what is known of an affinity map.
type mapState struct {
	groups map[uint32]*groupState // that have entries in it, by number
	lists  map[uint32]affinity.List
	read   bool      // it may have wrong entries: it has to be read
	since  time.Time // of the latest commit that may have left wrong entries
}

type groupState struct {
	affinity.Group
	newTimeout bool // its entries may have another one
	fresh      bool // of a Service port whose other list has had entries before
}

// New returns a Cleaner. maps returns the affinity maps of a family; any goroutine may call it.
func New(reader Reader, maps func(nft.Family) []*nft.Set, log *zap.Logger) *Cleaner {
	c := &Cleaner{
		log: log, reader: reader, maps: maps,
		Batches: make(chan Batch), wake: retry.NewWake(),
		states: make(map[mapID]*mapState),
	}
	for _, f := range nft.Families { // an earlier process may have left wrong entries
		for _, set := range maps(f) {
			c.state(mapID{f, set.Name}).read = true
		}
	}
	return c
}

// state returns what is known of a map. The caller holds the mutex.
func (c *Cleaner) state(id mapID) *mapState {
	m := c.states[id]
	if m == nil {
		m = &mapState{groups: make(map[uint32]*groupState), lists: make(map[uint32]affinity.List)}
		c.states[id] = m
	}
	return m
}

// Committed records what a commit has changed, and wakes Run if entries may be wrong.
func (c *Cleaner) Committed(changes affinity.Changes) {
	c.mu.Lock()
	committed := time.Now()
	for _, now := range changes.Groups { // first the groups whose other list was there before: they are fresh
		m := c.state(mapID{now.Family, layout.AffinityMap(now.Number)})
		if m.groups[now.Number] == nil && m.groups[layout.OtherList(now.Number)] != nil && now.List != 0 {
			m.groups[now.Number] = &groupState{Group: now, fresh: true}
		}
	}
	for _, now := range changes.Groups {
		m := c.state(mapID{now.Family, layout.AffinityMap(now.Number)})
		g := m.groups[now.Number]
		if g == nil {
			g = &groupState{Group: now}
			m.groups[now.Number] = g
		}
		g.newTimeout = g.newTimeout || g.Timeout != now.Timeout
		if g.newTimeout || g.fresh || g.List != now.List {
			m.read, m.since = true, committed
		}
		if g.Group = now; now.List == 0 {
			delete(m.groups, now.Number)
		}
	}
	for _, now := range changes.Lists {
		m := c.state(mapID{now.Family, now.Map})
		if now.Left {
			m.read, m.since = true, committed
		}
		if m.lists[now.Number] = now.List; len(now.Members) == 0 {
			delete(m.lists, now.Number)
		}
	}
	work := false
	for _, m := range c.states {
		work = work || m.read
	}
	c.mu.Unlock()
	if work {
		c.wake.Notify()
	}
}

// Times of the clean-up. A packet needs much less than settling from its lookup to its end.
const (
	settling = time.Second
	// lookInterval is how often it asks how full the maps are; uncountedInterval, if it has to read them for that.
	lookInterval      = 10 * time.Second
	uncountedInterval = time.Minute
	// perBatch is a number of entries: to look these up takes a millisecond, to change them less, or a few if thousands of
	// rules use the map.
	perBatch = 100
)

// mostChanges is how many wrong entries of a map are kept at most: 160 MB for 128 full maps. The next reading finds the
// others. Tests lower it.
var mostChanges = 10_000

// Run cleans up until ctx ends.
func (c *Cleaner) Run(ctx context.Context) {
	began := time.Now()
	look := began.Add(lookInterval)
	passed := func() time.Duration { return time.Since(began) }
	retry.Repeat(ctx, c.wake, lookInterval, passed, func() (again time.Duration, err error) {
		if now := time.Now(); !now.Before(look) {
			look = now.Add(c.findFull(ctx))
		}
		left, err := c.clean(ctx)
		again = max(0, time.Until(look))
		if left {
			again = min(again, settling)
		}
		return again, err
	})
}

// findFull has maps read that are full but for a quarter, and returns when to look again. Linux before 6.16 does not
// count entries: there it has all maps read.
func (c *Cleaner) findFull(ctx context.Context) (next time.Duration) {
	next = lookInterval
	for _, f := range nft.Families {
		for _, set := range c.maps(f) {
			id := mapID{f, set.Name}
			if !c.used(id) {
				continue
			}
			n, known, err := c.reader.Count(ctx, f, set)
			if err != nil { // the map has gone, or the next look will tell
				continue
			}
			if !known {
				next = uncountedInterval
			}
			if !known || int(n) > affinity.Room(set.Size) {
				c.mu.Lock()
				c.state(id).read = true
				c.mu.Unlock()
			}
		}
	}
	return next
}

// used reports whether a map has entries of Service ports.
func (c *Cleaner) used(id mapID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.state(id).groups) > 0
}

// clean reads the maps that may have wrong entries, and has a few entries of each changed: a map of one namespace can
// have 100,000 wrong entries, and others do not wait for that. What is left to change comes with the next call, for
// which it wakes Run. left says that some maps have to be read again.
func (c *Cleaner) clean(ctx context.Context) (left bool, err error) {
	before := c.jobs
	c.jobs = make(map[mapID]*job)
	for _, f := range nft.Families {
		for _, set := range c.maps(f) {
			id := mapID{f, set.Name}
			j := before[id]
			if j == nil {
				if j = c.begin(id); j == nil {
					continue
				}
				if err == nil {
					err = c.read(ctx, f, set, j)
				}
			}
			if err == nil {
				err = c.change(ctx, f, set, j)
			}
			switch {
			case err != nil:
				c.postpone(j)
				left = true
			case len(j.changes) > 0:
				c.jobs[id] = j
				c.wake.Notify()
			case j.more:
				c.postpone(j)
				c.wake.Notify()
			default:
				left = c.finish(j) || left
			}
		}
	}
	noFailure := ctx.Err() != nil || errors.Is(err, ErrTablesUnknown)
	if !noFailure && c.failing.Fails(err) {
		c.log.Warn("session affinity: cannot remove entries of removed endpoints; connections that follow them are "+
			"dropped", zap.Error(err))
	}
	return left, err
}

// A job is one reading of a map, and what it has found.
type job struct {
	id         mapID
	began      time.Time
	newTimeout map[uint32]bool
	fresh      map[uint32]bool

	changes []affinity.EntryChange // that are not committed yet, mostChanges at first
	more    bool                   // there are others, which another reading finds
	stale   int                    // how many entries named no member
}

// begin starts a reading if a map needs one; nil if it does not. Commits from now on ask for another one.
func (c *Cleaner) begin(id mapID) *job {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.state(id)
	if !m.read {
		return nil
	}
	m.read = false
	j := &job{id: id, began: time.Now(), newTimeout: make(map[uint32]bool), fresh: make(map[uint32]bool)}
	for n, g := range m.groups { // a Service may have 10,000, of which none has either
		if g.newTimeout || g.fresh {
			j.newTimeout[n], j.fresh[n] = g.newTimeout, g.fresh
			g.newTimeout, g.fresh = false, false
		}
	}
	return j
}

// postpone has a map read again for what a reading has not brought about.
func (c *Cleaner) postpone(j *job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.state(j.id)
	m.read = true
	for n, g := range m.groups {
		g.newTimeout, g.fresh = g.newTimeout || j.newTimeout[n], g.fresh || j.fresh[n]
	}
}

// finish ends a reading and says whether the map has to be read again. A reading can miss entries that packets make
// meanwhile: the last one begins a second after the commit or later, and finds none that are wrong.
func (c *Cleaner) finish(j *job) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.state(j.id)
	again = j.stale > 0 || j.began.Sub(m.since) < settling
	m.read = m.read || again
	return again
}

// read finds the wrong entries of a map.
func (c *Cleaner) read(ctx context.Context, f nft.Family, set *nft.Set, j *job) error {
	held, err := c.reader.Elements(ctx, f, set)
	if errors.Is(err, unix.ENOENT) { // it went with the last Service port that has affinity
		return nil
	}
	if err != nil {
		return fmt.Errorf("read affinity map %s: %w", set.Name, err)
	}
	j.changes, j.stale = affinity.Wrong(f, held, affinity.Room(set.Size), func(n uint32) (affinity.Group, affinity.List) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.group(j.id, n)
	}, j.newTimeout, j.fresh)
	if j.more = len(j.changes) > mostChanges; j.more {
		j.changes = slices.Clone(j.changes[:mostChanges])
	}
	return nil
}

// change has the first wrong entries changed that a reading has found.
func (c *Cleaner) change(ctx context.Context, f nft.Family, set *nft.Set, j *job) error {
	n := min(perBatch, len(j.changes))
	still, err := c.unchanged(ctx, f, set, j.changes[:n])
	if err == nil && len(still) > 0 {
		err = c.commit(ctx, func() []nft.Op { return affinity.Ops(f, set, c.withoutMembers(j.id, still)) })
	}
	switch {
	case errors.Is(err, unix.EEXIST): // packets have replaced an entry since: look again
		return nil
	case errors.Is(err, unix.ENOENT):
		if _, readErr := c.reader.Elements(ctx, f, set); errors.Is(readErr, unix.ENOENT) { // the map went since
			j.changes, j.more, j.stale = nil, false, 0
			return nil
		}
		return err
	case err == nil:
		j.changes = j.changes[n:]
	}
	return err
}

// unchanged returns the changes whose entries are still as they were read. A change of another one would fail a
// batch: see affinity.Ops.
func (c *Cleaner) unchanged(ctx context.Context, f nft.Family, set *nft.Set,
	changes []affinity.EntryChange) (still []affinity.EntryChange, err error) {
	for _, change := range changes {
		entry, ok, err := c.reader.Lookup(ctx, f, set, change.Key)
		if err != nil {
			return nil, fmt.Errorf("look up an entry of affinity map %s: %w", set.Name, err)
		}
		if ok != change.New && (change.New || entry.Data == change.Data) {
			still = append(still, change)
		}
	}
	return still, nil
}

// withoutMembers leaves out the removal of entries whose endpoint has become a member of its group since they were
// read.
func (c *Cleaner) withoutMembers(id mapID, changes []affinity.EntryChange) (still []affinity.EntryChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range changes {
		if _, list := c.group(id, change.Left.Number); !list.Has(change.Left.Addr) {
			still = append(still, change)
		}
	}
	return still
}

// group returns a group and its list; zero ones if it is not known. The caller holds the mutex.
func (c *Cleaner) group(id mapID, number uint32) (affinity.Group, affinity.List) {
	m := c.state(id)
	if g := m.groups[number]; g != nil {
		return g.Group, m.lists[g.List]
	}
	return affinity.Group{}, affinity.List{}
}

// commit has the loop commit operations.
func (c *Cleaner) commit(ctx context.Context, ops func() []nft.Op) error {
	answer := make(chan error, 1)
	select {
	case c.Batches <- Batch{ops, answer}:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
