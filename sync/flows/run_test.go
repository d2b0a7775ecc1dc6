package flows

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/conntrack"
)

// A fakeKernel has connections that last, and ends of connections to be read.
type fakeKernel struct {
	ends   chan *conntrack.Flow
	broken chan error
	over   chan struct{}

	mu      sync.Mutex
	table   []*conntrack.Flow
	lost    uint64
	opened  int
	account error
}

// set changes something while the Counter runs.
func (k *fakeKernel) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

func (k *fakeKernel) Visit(_ context.Context, filter conntrack.Filter, _ int,
	visit func(*conntrack.Flow)) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.table {
		if filter.Matches(f) {
			visit(f)
		}
	}
	return true, nil
}

func (k *fakeKernel) Next(visit func(*conntrack.Flow)) error {
	select {
	case f := <-k.ends:
		visit(f)
		return nil
	case err := <-k.broken:
		return err
	case <-k.over:
		return os.ErrDeadlineExceeded
	}
}

func (k *fakeKernel) SetDeadline(time.Time) error {
	close(k.over)
	return nil
}

func (k *fakeKernel) Lost() (uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.lost
	k.lost = 0
	return n, nil
}

func (k *fakeKernel) Close() error { return nil }

// TestRun: counting goes on after errors with what is known, and ends with its context.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{ends: make(chan *conntrack.Flow), broken: make(chan error)}
		start := time.Now()
		c := New(Options{
			CPUTime: func() time.Duration { return time.Since(start) },
			Log:     zap.NewNop(), Committed: committed{cluster: web}, Exists: func(Service) bool { return true },
			Account: func() (err error) {
				k.set(func() { err = k.account })
				return err
			},
			Open: func() (Table, error) { return k, nil },
			Listen: func() (Endings, error) {
				k.set(func() { k.opened++ })
				k.over = make(chan struct{})
				return k, nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			c.Run(ctx)
			close(done)
		}()
		synctest.Wait()
		begin := time.Now()
		connection := func(id uint32, sent uint64) *conntrack.Flow {
			f := connectionTo(cluster, id, 0, sent, 0)
			f.Started = uint64(begin.Add(time.Second).UnixNano())
			return f
		}
		bytes := func() uint64 {
			synctest.Wait()
			for _, u := range c.Usages() {
				if u.Service == web {
					return u.Sent.Bytes
				}
			}
			return 0
		}
		k.ends <- ended(connection(1, 100), time.Second)
		if got := bytes(); got != 100 {
			t.Errorf("%d bytes", got)
		}
		k.set(func() { k.table = append(k.table, connection(2, 1000)) })
		time.Sleep(lookInterval)
		if got, state := bytes(), c.State(); got != 1100 || state.Connections != 1 || state.Problem != "" {
			t.Errorf("%d bytes, %+v", got, state)
		}
		k.set(func() { k.lost = 7 })
		k.ends <- ended(connection(3, 10), time.Second)
		if got := bytes(); got != 1110 || c.State().Lost != 7 {
			t.Errorf("%d bytes, %+v", got, c.State())
		}
		k.set(func() { k.account = errors.New("read-only") })
		time.Sleep(lookInterval)
		synctest.Wait()
		if got := c.State().Problem; got != "read-only" {
			t.Errorf("problem %q", got)
		}
		k.set(func() { k.account = nil })
		k.broken <- errors.New("broken")
		synctest.Wait()
		if got := c.State().Problem; got != "broken" {
			t.Errorf("problem %q", got)
		}
		k.set(func() { k.table[0] = connection(2, 1500) }) // it went on meanwhile
		time.Sleep(time.Minute)
		if got, state := bytes(), c.State(); got != 1610 || state.Problem != "" || k.opened != 2 {
			t.Errorf("%d bytes, %+v, opened %d times", got, state, k.opened)
		}
		cancel()
		<-done
	})
}
