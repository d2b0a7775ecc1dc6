package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// A hostile world stands beside a friendly twin, and both start.
type hostile struct {
	name         string
	world, twin  world
	start        bar
	rss          bar
	sets, chains bar
}

// measureWorst measures worst cases, each beside its friendly twin.
func (o *options) measureWorst(c *comparison) error {
	for _, of := range []struct {
		name    string
		measure func(*comparison) error
	}{
		{"", o.measureHostiles}, // which looks at each name
		{"one range changes", o.measureRangeChange},
		{"connections", o.measureFlows},
		{"clients with affinity", o.measureAffinity},
		{"flaps", o.measureFairness},
		{"SIGTERM", o.measureFarewell},
		{"usual log", o.measureLog},
	} {
		if of.name != "" && !o.wanted(of.name) {
			continue
		}
		if err := of.measure(c); err != nil {
			return fmt.Errorf("worst cases: %w", err)
		}
	}
	return nil
}

// wanted reports whether a worst case is to be measured.
func (o *options) wanted(name string) bool { return o.only == nil || o.only.MatchString(name) }

// part takes a share of a number, at least 1: small runs try the program.
func (o *options) part(n int) int { return max(1, int(o.share*float64(n))) }

// hostiles are the worlds of which the start is measured. A twin has as many Services, or if the
// world has few of them, as many elements.
func (o *options) hostiles() []hostile {
	affinity, affineEverywhere, contested, externals := o.part(4000), o.part(2500), o.part(2000), o.part(2000)
	plain := func(elements int) world { return worldOf(max(1, elements/12), 10) } // 10 endpoints are 12 elements
	return []hostile{
		{
			name:  fmt.Sprintf("%d Services with session affinity", affinity),
			world: worldOf(affinity, 3, affine), twin: worldOf(affinity, 3),
			start: times(2), sets: most(60), chains: most(float64(3*affinity + 200)),
		},
		{
			name:  fmt.Sprintf("%d Services with session affinity and all frontends", affineEverywhere),
			world: worldOf(affineEverywhere, 3, affine, everywhere), twin: worldOf(affineEverywhere, 3, everywhere),
			start: times(2), sets: most(60), chains: most(float64(3*affineEverywhere + 200)),
		},
		{
			name:  fmt.Sprintf("%d Services of 1000 source ranges", o.part(100)),
			world: worldOf(o.part(100), 3, guarded(1000)), twin: plain(1000 * o.part(100)),
			start: times(2),
		},
		{
			name:  fmt.Sprintf("one Service of 20 ports and %d source ranges", o.part(5000)),
			world: worldOf(1, 3, ported(20, false), guarded(o.part(5000))), twin: plain(o.part(5000)),
			start: times(2),
		},
		{
			name:  fmt.Sprintf("one Service of %d ports", o.part(3000)),
			world: worldOf(1, 10, ported(o.part(3000), true)), twin: worldOf(o.part(3000), 10),
			start: times(1.5),
		},
		{
			name:  fmt.Sprintf("%d Services that claim one external IP", contested),
			world: worldOf(contested, 3, claiming(true)), twin: worldOf(contested, 3, claiming(false)),
			start: times(1.5),
		},
		{
			name:  fmt.Sprintf("one Service of %d external IPs and %d endpoints", externals, o.part(500)),
			world: worldOf(1, o.part(500), external(externals)), twin: plain(externals + o.part(500)),
			start: times(2), rss: times(1.5),
		},
	}
}

// A started cluster is what its start took.
type started struct {
	start                  time.Duration
	rss, peak              float64
	sets, chains, elements int
	lags                   []time.Duration // of the neighbour, then
}

// neighbourRounds is how often the neighbour changes where nothing else does.
const neighbourRounds = 100

// measureHostiles starts kube-nft in each hostile world and in its twin, in turns.
func (o *options) measureHostiles(c *comparison) error {
	for _, h := range o.hostiles() {
		if !o.wanted(h.name) {
			continue
		}
		var of [2]*started
		for run := range o.runs {
			for i, w := range []world{h.world, h.twin} {
				s, err := o.startWorld(w, run == o.runs-1)
				if err != nil {
					return fmt.Errorf("%s: %w", h.name, err)
				}
				if of[i] != nil {
					s.start = min(s.start, of[i].start)
				}
				of[i] = s
			}
		}
		worst, twin := of[0], of[1]
		c.duration(h.name, "start", worst.start, twin.start, h.start)
		c.add(h.name, "RSS after the start", octets, worst.rss, twin.rss, h.rss)
		c.add(h.name, "highest RSS", octets, worst.peak, twin.peak, bar{})
		c.add(h.name, "sets and maps", count, float64(worst.sets), float64(twin.sets), h.sets)
		c.add(h.name, "chains", count, float64(worst.chains), float64(twin.chains), h.chains)
		c.add(h.name, "elements", count, float64(worst.elements), float64(twin.elements), bar{})
		c.duration(h.name, "neighbour's lag, p50", quantile(worst.lags, 0.5), quantile(twin.lags, 0.5), times(1.5))
		c.duration(h.name, "neighbour's lag, p99", quantile(worst.lags, 0.99), quantile(twin.lags, 0.99), bar{})
	}
	return nil
}

// startWorld starts kube-nft in a world, and if all is wanted looks at what it is like then.
func (o *options) startWorld(w world, all bool) (s *started, err error) {
	l, err := newWorldly(o.binary, w)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	s = new(started)
	if s.start, err = l.startUnobserved(); err != nil || !all {
		return s, err
	}
	time.Sleep(settling)
	if s.rss, err = l.daemon.memory("VmRSS"); err != nil {
		return nil, err
	}
	if s.peak, err = l.daemon.memory("VmHWM"); err != nil {
		return nil, err
	}
	if s.lags, err = l.neighbour(neighbourRounds); err != nil {
		return nil, l.daemon.Failure(err)
	}
	if err := l.alive(); err != nil {
		return nil, l.daemon.Failure(err)
	}
	tables, err := l.tables()
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		s.sets += len(table.Sets)
		s.chains += len(table.Chains)
		for _, set := range table.Sets {
			s.elements += len(set.Map)
		}
	}
	return s, nil
}

// The neighbour is a Service that has nothing to do with the others.
const (
	neighbourName      = "neighbour"
	neighbourEndpoints = 10
)

var neighbourIP = lab.After(serviceCIDR.Addr(), 2)

// newWorldly returns a live cluster with the content of a world, and the neighbour.
func newWorldly(binary string, w world) (*live, error) {
	l, err := newEmptyLive(binary)
	if err != nil {
		return nil, err
	}
	l.flags, l.last = []string{"--conntrack-max-per-core", "0"}, w.last // all namespaces share the limit
	err = l.space.Do(func() error {
		return errors.Join(lab.AddRoute("sink", balancerCIDR, netip.Addr{}), lab.AddRoute("sink", externalCIDR, netip.Addr{}))
	})
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	l.server.Apply(newService(neighbourName, neighbourIP))
	l.moveNeighbour()
	w.fill(l.server)
	return l, nil
}

// moveNeighbour gives the neighbour a fresh endpoint for one that it has had.
func (l *live) moveNeighbour() netip.Addr {
	addrs := lab.Addresses(lab.After(clientAddress.Addr(), -2*neighbourEndpoints), neighbourEndpoints)
	addrs[0] = l.fresh.next()
	slice := newSlice(neighbourName, 0, addrs)
	l.observer.expect(addrs[0])
	l.server.Apply(slice)
	return addrs[0]
}

// neighbour changes the neighbour so many times, at random moments, and returns the lags.
func (l *live) neighbour(rounds int) ([]time.Duration, error) {
	random := rand.New(rand.NewPCG(3, 4))
	lags := make([]time.Duration, 0, rounds)
	for range rounds {
		time.Sleep(calm/2 + time.Duration(random.Int64N(int64(calm))))
		lag, err := l.observer.await(l.moveNeighbour(), patience)
		if err != nil {
			return nil, err
		}
		lags = append(lags, lag)
	}
	return lags, nil
}

// neighbourFor changes the neighbour for a while.
func (l *live) neighbourFor(d time.Duration) (lags []time.Duration, err error) {
	for begin := time.Now(); time.Since(begin) < d; {
		more, err := l.neighbour(5)
		if err != nil {
			return nil, err
		}
		lags = append(lags, more...)
	}
	return lags, nil
}

// tables reads what the kernel holds, without what packets have put into affinity maps.
func (l *live) tables() (tables nft.Tables, err error) {
	err = l.withClient(func(client *kernel.Client) (err error) {
		tables, _, err = client.Read(context.Background())
		return err
	})
	return tables, err
}

func (l *live) withClient(do func(*kernel.Client) error) error {
	return l.space.Do(func() error {
		client, err := kernel.Open()
		if err != nil {
			return err
		}
		defer client.Close()
		return do(client)
	})
}

// alive fails if kube-nft says that it does not live.
func (l *live) alive() error {
	const url = "http://127.0.0.1:10256/livez"
	response, err := l.get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}
