package sync

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/tracker"
)

// An ear is a monitor whose news come from the test.
type ear struct {
	news   chan *change.ForeignChange // closed: the socket is broken
	joined []bool
}

func (e *ear) Join() error  { e.joined = append(e.joined, true); return nil }
func (e *ear) Leave() error { e.joined = append(e.joined, false); return nil }

func (e *ear) Next() (*change.ForeignChange, error) {
	change, ok := <-e.news
	if !ok {
		return nil, errors.New("listen to nf_tables: bad file descriptor")
	}
	return change, nil
}

// An inspected table answers audits as it is told.
type inspected struct {
	table
	generation uint32 // now; the batches of a table are made for 7
	difference string
	audits     int
}

// find makes audits find a difference.
func (i *inspected) find(difference string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.difference = difference
}

// asked returns how many audits there were.
func (i *inspected) asked() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.audits
}

func (i *inspected) Generation(context.Context) (uint32, error) { return i.generation, nil }

func (i *inspected) Audit(context.Context, nft.Tables) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.audits++
	return i.difference, nil
}

// watch starts a loop that listens and waits for its first commit.
func watch(t *testing.T, k *inspected, further ...tracker.Delta) (*ear, *bubble) {
	t.Helper()
	e := &ear{news: make(chan *change.ForeignChange)}
	b := newBubble(k, Options{AuditInterval: time.Hour})
	b.feed.deltas = append(b.feed.deltas, further...)
	b.loop.Watch(e)
	t.Cleanup(func() { // when the loop has ended
		if !b.loop.drift.unmonitored {
			close(e.news)
		}
	})
	b.run(t)
	return e, b
}

// TestListening: the monitor listens from the first read on, but not to a large first commit.
func TestListening(t *testing.T) {
	for _, size := range []struct {
		services int
		joined   []bool
	}{{1, []bool{true}}, {busyPart, []bool{true, false, true}}} {
		synctest.Test(t, func(t *testing.T) {
			k := &inspected{generation: 8}
			e, _ := watch(t, k, manyServices(size.services, 1))
			if !slices.Equal(e.joined, size.joined) {
				t.Errorf("%d Services: joined %v, want %v", size.services, e.joined, size.joined)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if reads, _ := k.seen(); reads != 1 {
				t.Errorf("%d reads, want only the first: no other program committed between", reads)
			}
		})
	}
}

func TestCommitBeforeListeningIsReadBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &inspected{generation: 9}
		watch(t, k, manyServices(busyPart, 1))
		time.Sleep(rereadAfter)
		synctest.Wait()
		if reads, _ := k.seen(); reads != 2 {
			t.Errorf("%d reads, want another one: another program committed before we listened", reads)
		}
	})
}

// TestOvertaken: after a commit to other tables the loop sends its batch again, bound to the new generation.
// After a change of our tables it reads them again.
func TestOvertaken(t *testing.T) {
	for name, tt := range map[string]struct {
		news  change.ForeignChange
		reads int
	}{
		"other tables": {change.ForeignChange{Generation: 9}, 1},
		"our table":    {change.ForeignChange{Generation: 9, Events: make([]change.Event, 1)}, 2},
		"lost":         {change.ForeignChange{Lost: true}, 2},
		"says nothing": {change.ForeignChange{Generation: 8}, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := &inspected{generation: 9}
			k.answers = []error{&kernel.BatchError{Err: unix.ERESTART}}
			e := &ear{news: make(chan *change.ForeignChange, 1)}
			e.news <- &tt.news
			b := newBubble(k, Options{AuditInterval: time.Hour})
			b.loop.Watch(e)
			b.run(t)
			time.Sleep(2 * tellTime)
			synctest.Wait()
			close(e.news)
			reads, batches := k.seen()
			if reads != tt.reads || batches != 2 {
				t.Errorf("%s: %d reads, %d batches; want %d and 2", name, reads, batches, tt.reads)
			}
			if tt.reads == 1 && k.batches[1].Generation != 9 {
				t.Errorf("%s: the second batch is for generation %d, want 9", name, k.batches[1].Generation)
			}
		})
	}
}

func TestLostNotificationsAreReadBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &inspected{generation: 8}
		e, b := watch(t, k)
		e.news <- &change.ForeignChange{Lost: true}
		synctest.Wait()
		if reads, batches := k.seen(); reads != 2 || batches != 2 {
			t.Errorf("%d reads, %d batches; want the tables read and repaired", reads, batches)
		}
		for _, entry := range b.logs.FilterLevelExact(zap.WarnLevel).All() {
			if got := entry.ContextMap()["reason"]; got != "kube-nft missed notifications of changes by other programs" {
				t.Errorf("%s: reason %q", entry.Message, got)
			}
		}
	})
}

func TestChangeBeforeTheReadIsDealtWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &inspected{generation: 8}
		e, _ := watch(t, k)
		e.news <- &change.ForeignChange{Generation: 7}
		synctest.Wait()
		if reads, batches := k.seen(); reads != 1 || batches != 1 {
			t.Errorf("%d reads, %d batches; want the old news to be passed over", reads, batches)
		}
	})
}

func TestStormIsRepairedEverLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &inspected{generation: 8}
		e, b := watch(t, k)
		for range 1000 {
			e.news <- &change.ForeignChange{Lost: true}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(longestWait)
		synctest.Wait()
		// 20 at once, one for each of 100 seconds, and those that had to wait.
		if _, batches := k.seen(); batches-1 < promptRepairs || batches-1 > 140 {
			t.Errorf("%d repairs of 1000 changes in 100 s", batches-1)
		}
		if b.logged("another program keeps changing our tables; delaying the repair") == 0 {
			t.Error("nothing in the log says so")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		_, before := k.seen()
		e.news <- &change.ForeignChange{Lost: true}
		synctest.Wait()
		if _, batches := k.seen(); batches != before+1 {
			t.Error("a repair has to wait although it has been quiet for a while")
		}
	})
}

func TestPace(t *testing.T) {
	now := time.Unix(0, 0)
	var p pace
	for i := range promptRepairs {
		if wait := p.next(now); wait != 0 {
			t.Fatalf("repair %d waits %v", i, wait)
		}
	}
	for _, want := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
		if wait := p.next(now); wait != want {
			t.Errorf("the next one waits %v, want %v", wait, want)
		}
		if wait := p.next(now.Add(want / 2)); wait != want/2 {
			t.Errorf("damage found meanwhile waits %v, want it to go with the repair that is due in %v", wait, want/2)
		}
		now = now.Add(want)
	}
}

func TestAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &inspected{generation: 8}
		watch(t, k)
		time.Sleep(150 * time.Minute)
		synctest.Wait()
		if reads, _ := k.seen(); k.asked() != 2 || reads != 1 {
			t.Errorf("%d audits, %d reads; want two and none but the first", k.asked(), reads)
		}
		k.find("table ip kube-nft does not exist")
		time.Sleep(time.Hour)
		synctest.Wait()
		if reads, batches := k.seen(); reads != 2 || batches != 2 {
			t.Errorf("%d reads, %d batches after an audit that found something", reads, batches)
		}
		k.find("")
		time.Sleep(2 * auditsPerRead * time.Hour)
		synctest.Wait()
		if reads, _ := k.seen(); reads < 3 || reads > 5 {
			t.Errorf("%d more reads in %d hours, want one for every %d audits", reads-2, 2*auditsPerRead, auditsPerRead)
		}
	})
}

func TestLoopThatHearsNothingReadsAtEveryAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &inspected{generation: 8}
		e, b := watch(t, k)
		close(e.news)
		time.Sleep(210 * time.Minute)
		synctest.Wait()
		if reads, _ := k.seen(); reads != 4 || k.asked() != 0 {
			t.Errorf("%d reads, %d cheap audits in three and a half hours without a monitor", reads, k.asked())
		}
		if b.logged("cannot receive nf_tables notifications: kube-nft finds changes by other programs only every "+
			"--sync-period") != 1 {
			t.Errorf("log: %v", b.logs.All())
		}
	})
}
