package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A traffic is all that clients ask, all the time.
type traffic struct {
	clients   []*client
	followers []*client // of an endpoint that moves all the time: each is answered in a calm
	outsiders []*outsider
	wanderers []*wanderer
	pulse     *pulse
	running   sync.WaitGroup
	stop      context.CancelFunc
}

// newTraffic makes a client for each way to reach each of the Services that stay.
func newTraffic(r rules, services int, seed uint64) *traffic {
	t := &traffic{stop: func() {}, pulse: r.pulse}
	for i, s := range stays[:rolling+1] {
		for f := range families {
			family := &families[f]
			frontends := []netip.AddrPort{
				netip.AddrPortFrom(family.stayingIP(i), lab.ServicePort),
				netip.AddrPortFrom(family.node, uint16(s.nodePort)),
			}
			for _, to := range frontends {
				for _, network := range []string{"tcp", "udp"} {
					for _, lasting := range []bool{false, true} {
						t.clients = append(t.clients, &client{
							id: len(t.clients), service: s.name, network: network, lasting: lasting,
							from: family.node, to: to, rules: r,
						})
					}
				}
			}
		}
	}
	for f := range families {
		t.addHostile(&families[f], r)
	}
	id := len(t.clients) + len(t.followers) + len(t.outsiders)
	for f := range families {
		t.wanderers = append(t.wanderers, newWanderer(id+f, &families[f], r, services, seed))
	}
	return t
}

// loyals is how many clients of Service affine there are for each protocol.
const loyals = 3

// addHostile makes the clients of the Services that are a burden for others.
func (t *traffic) addHostile(f *family, r rules) {
	next := func(service int, network string, from netip.Addr, turns ...netip.AddrPort) *client {
		id := len(t.clients) + len(t.followers) + len(t.outsiders)
		return &client{id: id, service: stays[service].name, network: network, from: from, to: turns[0],
			turns: turns, rules: r}
	}
	at := func(number int) netip.AddrPort { return netip.AddrPortFrom(f.outerIP(number), lab.ServicePort) }
	everywhere := []netip.AddrPort{
		netip.AddrPortFrom(f.stayingIP(affine), lab.ServicePort), netip.AddrPortFrom(f.node, uint16(stays[affine].nodePort)),
		at(balancerAddress + affine),
	}
	for k := range affineExternals {
		everywhere = append(everywhere, at(affineAddresses+k))
	}
	for n, network := range []string{"tcp", "udp"} {
		for k := range loyals {
			c := next(affine, network, f.clientOf(n*loyals+k), everywhere...)
			c.loyal = true
			t.clients = append(t.clients, c)
		}
		t.clients = append(t.clients,
			next(restricted, network, f.node, at(balancerAddress+restricted)),
			next(contested, network, f.node, at(contestedAddress)))
	}
	impatient := r
	impatient.hurry, impatient.strict = new(atomic.Bool), false
	impatient.hurry.Store(true)
	for _, lasting := range []bool{false, true} {
		c := next(moving, "udp", f.node, netip.AddrPortFrom(f.stayingIP(moving), lab.ServicePort))
		c.rules, c.lasting = impatient, lasting
		t.followers = append(t.followers, c)
	}
	o := next(restricted, "tcp", f.clientOf(2*loyals), at(balancerAddress+restricted))
	o.rules = impatient
	t.outsiders = append(t.outsiders, &outsider{o})
}

// An outsider asks a Service whose source ranges leave it out.
type outsider struct{ *client }

// run asks until ctx ends.
func (o *outsider) run(ctx context.Context) {
	for ctx.Err() == nil {
		if by, err := o.exchange(ctx); err == nil {
			o.complain(fmt.Errorf("%s was answered by %s, although it asks from %s, which is in no source range", o, by, o.from))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// start lets all talk until end is called.
func (t *traffic) start(ctx context.Context) {
	ctx, t.stop = context.WithCancel(ctx)
	t.running.Go(func() { t.pulse.run(ctx) })
	for _, c := range slices.Concat(t.clients, t.followers) {
		t.running.Go(func() { c.run(ctx) })
	}
	for _, o := range t.outsiders {
		t.running.Go(func() { o.run(ctx) })
	}
	for _, w := range t.wanderers {
		t.running.Go(func() { w.run(ctx) })
	}
}

// end stops the clients, and returns when all have ended.
func (t *traffic) end() {
	t.stop()
	t.running.Wait()
}

// total adds up the tallies of the clients and returns the one with the slowest answer.
func (t *traffic) total() (sum tally, slowest *client) {
	for _, c := range t.clients {
		one := c.count()
		sum.answers += one.answers
		sum.lost += one.lost
		sum.inFlight += one.inFlight
		if slowest == nil || one.slowest > sum.slowest {
			sum.slowest, slowest = one.slowest, c
		}
		sum.outage = max(sum.outage, one.outage)
	}
	return sum, slowest
}

// A wanderer asks Services that change, by new TCP connections. They may fail, but no server of
// another Service may answer.
type wanderer struct {
	client
	family   *family
	services int
	random   *rand.Rand
}

func newWanderer(id int, f *family, r rules, services int, seed uint64) *wanderer {
	r.hurry, r.strict = new(atomic.Bool), false
	r.hurry.Store(true)
	return &wanderer{
		client: client{id: id, network: "tcp", from: f.node, rules: r},
		family: f, services: services, random: rand.New(rand.NewPCG(seed, uint64(id))),
	}
}

// run asks until ctx ends.
func (w *wanderer) run(ctx context.Context) {
	for ctx.Err() == nil {
		i := w.random.IntN(w.services)
		w.service, w.to = serviceName(i), netip.AddrPortFrom(w.family.clusterIP(i), lab.ServicePort)
		w.request(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// A pulse is a clock that stands still while this machine does, or has no time for us: it does
// not count the time for which an exchange waits then. Make it with new; it starts with run.
type pulse struct{ time, lost atomic.Int64 } // in nanoseconds

// What a beat may take, and what of it counts.
const (
	beat        = 10 * time.Millisecond
	longestBeat = 100 * time.Millisecond
)

// run beats until ctx ends.
func (p *pulse) run(ctx context.Context) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			now := time.Now()
			p.add(now.Sub(last))
			last = now
		}
	}
}

// add counts the time between two beats.
func (p *pulse) add(d time.Duration) {
	counts := min(d, longestBeat)
	p.time.Add(int64(counts))
	p.lost.Add(int64(d - counts))
}

// now returns the time that has passed.
func (p *pulse) now() time.Duration { return time.Duration(p.time.Load()) }

// stoodStill returns the time that does not count.
func (p *pulse) stoodStill() time.Duration { return time.Duration(p.lost.Load()) }
