package flows

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// Run counts until ctx ends. It takes a quarter of one CPU for the ends of connections at most, and another one for
// looks.
func (c *Counter) Run(ctx context.Context) {
	backoff := retry.Backoff{Min: time.Second, Max: time.Minute}
	for ctx.Err() == nil {
		began := time.Now()
		err := c.count(ctx)
		if ctx.Err() != nil {
			return
		}
		c.report(err)
		if time.Since(began) > lookInterval { // it had counted
			backoff.Reset()
		}
		if !retry.Pause(ctx, backoff.Next()) {
			return
		}
	}
}

// count counts until ctx ends or something fails. What is known of connections that last stays for the next call.
func (c *Counter) count(ctx context.Context) error {
	endings, err := c.options.Listen()
	if err != nil {
		return err
	}
	defer endings.Close()
	table, err := c.options.Open()
	if err != nil {
		return err
	}
	defer table.Close()
	if c.began.IsZero() { // what ends from now on is heard of
		c.setBegan(time.Now())
	}
	group, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() { _ = endings.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	group.Go(func() error { return c.listen(ctx, endings) })
	group.Go(func() error { return c.watch(ctx, table) })
	return group.Wait()
}

// listen counts the connections that end.
func (c *Counter) listen(ctx context.Context, endings Endings) error {
	runtime.LockOSThread() // Options.CPUTime is that of a thread
	defer runtime.UnlockOSThread()
	for ctx.Err() == nil {
		worked := c.options.CPUTime()
		var now time.Time
		err := endings.Next(func(f *conntrack.Flow) {
			if now.IsZero() {
				now = time.Now()
			}
			c.end(f, now)
		})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		lost, lostErr := endings.Lost()
		c.lose(lost)
		if err = errors.Join(err, lostErr); err != nil {
			return err
		}
		if !retry.Pause(ctx, max(drainInterval, retry.Rest(c.options.CPUTime()-worked))) {
			return nil
		}
	}
	return nil
}

func (c *Counter) lose(n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Lost += n
}

// watch looks once a minute at the connections that last.
func (c *Counter) watch(ctx context.Context, table Table) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for ctx.Err() == nil {
		began, worked := time.Now(), c.options.CPUTime()
		problem := c.options.Account()
		complete, err := c.look(ctx, table, began)
		if err != nil {
			return err
		}
		if problem == nil && !complete {
			problem = conntrack.ErrInterrupted
		}
		c.report(problem)
		rest := max(lookInterval-time.Since(began), retry.Rest(c.options.CPUTime()-worked))
		if !retry.Pause(ctx, rest) {
			return nil
		}
	}
	return nil
}

// look reads the connections that last.
func (c *Counter) look(ctx context.Context, table Table, now time.Time) (complete bool, err error) {
	c.mu.Lock()
	c.ended = make(map[connection]struct{})
	c.mu.Unlock()
	complete = true
	for _, family := range tracker.Families {
		all, visitErr := table.Visit(ctx, conntrack.Filter{Family: family, Has: conntrack.DestinationNAT}, math.MaxInt,
			func(f *conntrack.Flow) { c.see(f, now) })
		complete, err = complete && all, errors.Join(err, visitErr)
	}
	c.tidy(complete && err == nil, now)
	return complete, err
}

// report logs why not everything is counted, once for each cause; nil is that there is no cause.
func (c *Counter) report(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Problem = ""; err != nil {
		c.state.Problem = err.Error()
	}
	if c.failing.Fails(err) {
		c.options.Log.Warn("flow metrics do not count everything", zap.Error(err))
	}
}
