package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// A scene is a running kube-nft while something happens. Its world is a hostile one or, for
// comparison, its friendly twin.
type scene struct {
	world   world
	prepare func(*live) error // before the start; nil for nothing
	running func(*live) error // after it; nil for nothing
	rate    int               // calls of happen in a second; 0 for none
	happen  func(l *live, n int)
	enough  func(*live) bool // whether it has gone on for long enough, if it did so for the least time; nil for yes
}

// A seen holds what was measured in a scene.
type seen struct {
	start  time.Duration
	lags   []time.Duration // of the neighbour's changes
	commit time.Duration   // the mean of a commit
	busy   float64         // CPU seconds of kube-nft in a second
}

// play starts kube-nft and changes the neighbour for d at least, while something happens. after looks at the
// state at the end; nil for nothing.
func (o *options) play(s *scene, d time.Duration, after func(*live) error) (r *seen, err error) {
	l, err := newWorldly(o.binary, s.world)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if s.prepare != nil {
		if err := s.prepare(l); err != nil {
			return nil, err
		}
	}
	r = new(seen)
	if r.start, err = l.start(); err != nil {
		return nil, err
	}
	if s.running != nil {
		if err := s.running(l); err != nil {
			return nil, l.daemon.Failure(err)
		}
	}
	stop := func() {}
	if s.rate > 0 {
		stop = meanwhile(s.rate, func(n int) { s.happen(l, n) })
	}
	began := time.Now()
	used, err := l.daemon.cpu()
	if err != nil {
		return nil, err
	}
	before, err := l.commits()
	if err == nil {
		r.lags, err = l.neighbourFor(d)
	}
	for end := time.Now().Add(patience); err == nil && s.enough != nil && !s.enough(l) && time.Now().Before(end); {
		var more []time.Duration
		more, err = l.neighbour(5)
		r.lags = append(r.lags, more...)
	}
	stop()
	if err != nil {
		return nil, l.daemon.Failure(err)
	}
	now, err := l.commits()
	if err != nil {
		return nil, err
	}
	total, err := l.daemon.cpu()
	if err != nil {
		return nil, err
	}
	r.busy = (total - used).Seconds() / time.Since(began).Seconds()
	r.commit = time.Duration((now.seconds - before.seconds) / max(1, now.number-before.number) * float64(time.Second))
	if err := l.alive(); err != nil {
		return nil, l.daemon.Failure(err)
	}
	if after != nil {
		if err := after(l); err != nil {
			return nil, l.daemon.Failure(err)
		}
	}
	return r, nil
}

// commits are the daemon's metrics of its commits: their total duration and their number.
type commits struct{ seconds, number float64 }

func (l *live) commits() (c commits, err error) {
	if c.seconds, err = l.metric("kube_nft_commit_duration_seconds_sum"); err != nil {
		return c, err
	}
	c.number, err = l.metric("kube_nft_commit_duration_seconds_count")
	return c, err
}

// quiet returns the scene in which nothing happens.
func (s scene) quiet() *scene {
	s.rate = 0
	return &s
}

// crowd makes n connection tracking entries that concern no Service.
func (l *live) crowd(n int) error {
	return l.space.Do(func() error {
		crowded := netip.MustParsePrefix("172.16.0.0/12")
		err := errors.Join(lab.AddRoute("sink", crowded, netip.Addr{}),
			lab.SetSysctl("net.netfilter.nf_conntrack_udp_timeout", "3600"),
			// this rule starts conntrack, which may not run in the namespace yet
			loadText("table ip crowd { chain output { type filter hook output priority 0; ct state new accept; }; }"))
		if err != nil {
			return err
		}
		conn, err := net.ListenPacket("udp4", netip.AddrPortFrom(clientAddress.Addr(), 0).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		for i := range n {
			to := netip.AddrPortFrom(lab.After(crowded.Addr(), 1+i), 9)
			if _, err := conn.WriteTo(nil, net.UDPAddrFromAddrPort(to)); err != nil {
				return err
			}
		}
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		if err != nil {
			return err
		}
		if have, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || have < n {
			return fmt.Errorf("connection tracking has %d of %d entries: raise net.netfilter.nf_conntrack_max; %w", have, n, err)
		}
		return nil
	})
}

// measureFlows notes how much many connection tracking entries delay what does not concern them.
func (o *options) measureFlows(c *comparison) error {
	flows := o.part(200_000)
	crowd := func(l *live) error { return l.crowd(flows) }
	moving := func(protocol corev1.Protocol) *scene {
		return &scene{world: worldOf(o.part(1000), 3), running: crowd, rate: 30, happen: func(l *live, _ int) {
			slice := newSlice("moving", 0, []netip.Addr{l.fresh.next()})
			service := newService("moving", lab.After(serviceCIDR.Addr(), 3))
			service.Spec.Ports[0].Protocol, slice.Ports[0].Protocol = protocol, new(protocol)
			l.server.Apply(service, slice)
		}}
	}
	name := fmt.Sprintf("endpoint of UDP moves 30 times a second among %d connections; twin: of TCP", flows)
	looks := func(l *live) (float64, error) { return l.metric("kube_nft_stale_connections_lag_seconds_count") }
	hostile := moving(corev1.ProtocolUDP)
	hostile.enough = func(l *live) bool { n, err := looks(l); return err != nil || n >= 3 }
	worst, err := o.play(hostile, o.churn/2, func(l *live) error {
		sum, err := l.metric("kube_nft_stale_connections_lag_seconds_sum")
		if err != nil {
			return err
		}
		n, err := looks(l)
		if err == nil && n < 3 {
			err = fmt.Errorf("stale connections were looked for %g times only", n)
		}
		c.add(name, "lag of the clean-up, mean", seconds, sum/max(1, n), nothing, bar{})
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	twin, err := o.play(moving(corev1.ProtocolTCP), o.churn/2, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.lags(name, worst, twin, times(1.5))

	name = fmt.Sprintf("start among %d connections; twin: among none", flows)
	among := &scene{world: worldOf(o.part(1000), 3), prepare: crowd}
	alone := &scene{world: among.world}
	if worst, err = o.play(among, settling, nil); err == nil {
		twin, err = o.play(alone, settling, nil)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.duration(name, "start", worst.start, twin.start, times(1.5))
	c.lags(name, worst, twin, times(1.5))
	return nil
}

// lags notes the neighbour's lags.
func (c *comparison) lags(name string, worst, twin *seen, p50 bar) {
	c.duration(name, "neighbour's lag, p50", quantile(worst.lags, 0.5), quantile(twin.lags, 0.5), p50)
	c.duration(name, "neighbour's lag, p99", quantile(worst.lags, 0.99), quantile(twin.lags, 0.99), bar{})
	c.duration(name, "neighbour's lag, longest", quantile(worst.lags, 1), quantile(twin.lags, 1), bar{})
}

// clients makes n clients connect to the first Service, each once.
func (l *live) clients(n int) error {
	return l.space.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		first := netip.MustParseAddr("100.64.0.1")
		for i := range n {
			packet := syn(lab.After(first, i), clusterIP(0), 4321)
			if err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: clusterIP(0).As4()}); err != nil {
				return err
			}
		}
		return nil
	})
}

// affinityEntries counts the entries of all affinity maps, and among them as stale those that name
// endpoint.
func (l *live) affinityEntries(endpoint netip.Addr) (entries, stale int, err error) {
	tables, err := l.tables()
	if err != nil {
		return 0, 0, err
	}
	err = l.withClient(func(client *kernel.Client) error {
		for f, table := range tables {
			for _, set := range table.Sets {
				if !set.Set.Dynamic {
					continue
				}
				elements, err := client.Elements(context.Background(), f, set.Set)
				if err != nil {
					return err
				}
				entries += len(elements)
				for _, element := range elements {
					if strings.HasPrefix(element.Data, string(endpoint.AsSlice())) {
						stale++
					}
				}
			}
		}
		return nil
	})
	return entries, stale, err
}

// measureAffinity notes how much changes of a Service delay others if many clients have affinity to
// it.
func (o *options) measureAffinity(c *comparison) error {
	const endpoints = 10
	clients := o.part(65_000)
	at := size{1, endpoints}
	withClients := func(l *live) error {
		if err := l.clients(clients); err != nil {
			return err
		}
		entries, _, err := l.affinityEntries(netip.Addr{})
		if err == nil && entries < clients*9/10 {
			err = fmt.Errorf("%d of %d clients have an affinity entry", entries, clients)
		}
		return err
	}
	last := at.endpointsOf(0)[endpoints-1]
	leave := func(l *live, n int) { // with an odd n it comes back
		l.server.Apply(newSlice(serviceName(0), 0, at.endpointsOf(0)[:endpoints-1+n%2]))
	}
	retime := func(l *live, n int) {
		service := newService(serviceName(0), clusterIP(0))
		setAffinity(service, time.Duration(2+n%2)*time.Hour)
		l.server.Apply(service)
	}
	gone := func(l *live) error {
		leave(l, 0)
		for end := time.Now().Add(patience); ; time.Sleep(calm) {
			_, stale, err := l.affinityEntries(last)
			switch {
			case err != nil, stale == 0:
				return err
			case time.Now().After(end):
				return fmt.Errorf("%d affinity entries of an endpoint that left are there after %s", stale, patience)
			}
		}
	}
	for _, event := range []struct {
		what   string
		happen func(*live, int)
		after  func(*live) error
	}{{"an endpoint leaves and comes back", leave, gone}, {"the timeout changes", retime, nil}} {
		name := fmt.Sprintf("%d clients with affinity, twice a second %s; twin: no clients", clients, event.what)
		s := &scene{world: worldOf(1, endpoints, affine), running: withClients, rate: 2, happen: event.happen}
		worst, err := o.play(s, o.churn/2, event.after)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.running = nil
		twin, err := o.play(s, o.churn/2, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		c.lags(name, worst, twin, times(1.5))
	}
	return nil
}

// measureRangeChange notes how long the change of one source range among many takes.
func (o *options) measureRangeChange(c *comparison) error {
	n, ranges := o.part(100), 1000
	name := fmt.Sprintf("%d Services of %d source ranges, one range changes; twin: an endpoint does", n, ranges)
	l, err := newWorldly(o.binary, worldOf(n, 3, restricted(ranges)))
	if err != nil {
		return err
	}
	err = func() error {
		if _, err := l.start(); err != nil {
			return err
		}
		twin, err := l.neighbour(rounds)
		if err != nil {
			return err
		}
		worst, err := l.repeat(func(i int) netip.Addr {
			service := newService(serviceName(0), clusterIP(0))
			restricted(ranges)(0, service)
			fresh := sourceRange(n*ranges + i)
			service.Spec.LoadBalancerSourceRanges[ranges/2] = fresh.String()
			l.observer.expect(fresh.Addr())
			l.server.Apply(service)
			return fresh.Addr()
		})
		if err != nil {
			return err
		}
		c.duration(name, "API server to commit, p50", quantile(worst, 0.5), quantile(twin, 0.5), most(0.005))
		return nil
	}()
	if err != nil && l.daemon != nil {
		err = l.daemon.Failure(err)
	}
	return errors.Join(err, l.close())
}

// measureFairness notes how a Service that never rests delays another one.
func (o *options) measureFairness(c *comparison) error {
	n := o.part(10_000)
	base := worldOf(n, 3)
	at := size{n, 3}
	flaps := &scene{world: base, rate: 1000, happen: func(l *live, i int) {
		l.server.Apply(newSlice(serviceName(0), 0, at.endpointsOf(0)[:2+i%2]))
	}}
	spread := &scene{world: base, rate: 1000, happen: func(l *live, i int) {
		l.server.Apply(newSlice(serviceName(i%n), 0, at.endpointsOf(i % n)[:2+i/n%2]))
	}}
	large := o.part(5000)
	rolling := func(edits ...edit) *scene {
		return &scene{world: worldOf(1, large, edits...), rate: 100, happen: func(l *live, i int) {
			parts := (large + perSlice - 1) / perSlice
			part := i % parts
			addrs := size{1, large}.endpointsOf(0)[part*perSlice : min(large, (part+1)*perSlice)]
			addrs[0] = l.fresh.next()
			l.server.Apply(newSlice(serviceName(0), part, addrs))
		}}
	}
	const edge = 320 // of the largest class of slot tables but one: see nft/maglev
	turning := func(edits ...edit) *scene {
		return &scene{world: worldOf(1, edge, edits...), rate: 100, happen: func(l *live, i int) {
			l.server.Apply(newSlice(serviceName(0), edge/perSlice,
				size{1, edge + 1}.endpointsOf(0)[edge/perSlice*perSlice:edge+1-i%2]))
		}}
	}
	ranges := o.part(20_000)
	swapping := func(all bool) *scene {
		return &scene{world: worldOf(2, 3, restricted(ranges)), rate: 10, happen: func(l *live, i int) {
			if !all {
				l.server.Apply(newSlice(serviceName(0), 0, size{2, 3}.endpointsOf(0)[:2+i%2]))
				return
			}
			s := newService(serviceName(0), clusterIP(0))
			restricted(ranges)(i%2*2, s)
			balanced(0, s)
			l.server.Apply(s)
		}}
	}
	for _, of := range []struct {
		name        string
		worst, twin *scene
	}{
		{fmt.Sprintf("%d endpoints become %d and back 100 times a second, by Maglev; twin: by chance", edge, edge+1),
			turning(hashed), turning()},
		{fmt.Sprintf("%d source ranges flap to others 10 times a second; twin: an endpoint does", ranges), swapping(true),
			swapping(false)},
		{fmt.Sprintf("one of %d Services flaps 1000 times a second; twin: all take turns", n), flaps, spread},
		{fmt.Sprintf("Service of %d endpoints and affinity, 100 of which are replaced a second; twin: without affinity",
			large), rolling(affine), rolling()},
	} {
		quiet, err := o.play(of.worst.quiet(), o.churn/3, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
		worst, err := o.play(of.worst, o.churn/3, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
		twin, err := o.play(of.twin, o.churn/3, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
		c.lags(of.name, worst, twin, bar{})
		delay := quantile(worst.lags, 0.5) - quantile(quiet.lags, 0.5)
		c.duration(of.name, "delay of the neighbour, p50; beside it a commit of such a change", max(0, delay),
			worst.commit, times(1))
	}
	return nil
}

// logPeriod is long enough for the lines that come once a minute.
const logPeriod = 2*time.Minute + settling

// measureLog notes how much successful changes write to the log.
func (o *options) measureLog(c *comparison) error {
	period := time.Duration(min(1, o.share) * float64(logPeriod))
	n := o.part(1000)
	at := size{n, 3}
	name := fmt.Sprintf("100 changes a second among %d Services, usual log; twin: none", n)
	logged := func(rate int) (size float64, err error) {
		s := &scene{world: worldOf(n, 3), rate: rate, happen: func(l *live, i int) {
			l.server.Apply(newSlice(serviceName(i%n), 0, at.endpointsOf(i % n)[:2+i/n%2]))
		}}
		var before int64
		s.running = func(l *live) error {
			time.Sleep(settling) // the lines of the start do not count
			before = l.daemon.LogSize()
			return nil
		}
		s.prepare = func(l *live) error {
			l.flags = append(l.flags, "--log-level", "info")
			return nil
		}
		_, err = o.play(s, period, func(l *live) error {
			size = float64(l.daemon.LogSize() - before)
			return nil
		})
		return size, err
	}
	worst, err := logged(100)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	twin, err := logged(0)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	perDay := float64(24*time.Hour) / float64(period)
	c.add(name, "log in a day", octets, worst*perDay, twin*perDay, bar{})
	return nil
}

// longestFarewell is how long kube-nft may take to end, at any moment.
const longestFarewell = 2 * time.Second

// measureFarewell ends kube-nft at many moments of a start and of a large commit. It must leave
// either all of the rules or none in force.
func (o *options) measureFarewell(c *comparison) error {
	const moments = 8
	big := worldOf(o.part(30_000), 10)
	l, err := newWorldly(o.binary, big)
	if err != nil {
		return err
	}
	err = func() error {
		whole, err := l.start()
		if err != nil {
			return err
		}
		if _, err := l.farewell(); err != nil {
			return err
		}
		var longest time.Duration
		for i := range moments {
			if err := l.space.Do(func() error {
				return loadText("delete table ip kube-nft; delete table ip6 kube-nft")
			}); err != nil {
				return err
			}
			if l.daemon, err = l.startDaemon(); err != nil {
				return err
			}
			time.Sleep(whole * time.Duration(1+i) / (moments + 1))
			took, err := l.farewell()
			if err != nil {
				return err
			}
			longest = max(longest, took)
			tables, err := l.tables()
			if err != nil {
				return err
			}
			for _, table := range tables {
				if chain := table.Chains["nat-prerouting"]; chain == nil || table.Family != nft.IP {
					continue
				}
				for _, last := range []netip.AddrPort{netip.AddrPortFrom(clusterIP(0), lab.ServicePort), big.last} {
					if err := l.answers(last); err != nil {
						return fmt.Errorf("rules in force after SIGTERM, which are not whole: %w", err)
					}
				}
			}
			if len(tables) == 0 { // the next round deletes them
				if err := l.space.Do(func() error {
					return loadText("add table ip kube-nft; add table ip6 kube-nft")
				}); err != nil {
					return err
				}
			}
		}
		name := fmt.Sprintf("SIGTERM at %d moments of a start of %d Services of 10 endpoints", moments, o.part(30_000))
		c.add(name, "longest until the exit", seconds, longest.Seconds(), nothing, most(longestFarewell.Seconds()))
		return nil
	}()
	if err != nil {
		return fmt.Errorf("SIGTERM during a start: %w", errors.Join(err, l.close()))
	}
	if err := l.close(); err != nil {
		return err
	}
	return o.measureFarewellOfCommit(c)
}

// measureFarewellOfCommit ends kube-nft while it commits the source ranges of many Services that
// come at once.
func (o *options) measureFarewellOfCommit(c *comparison) error {
	const moments = 8
	n := o.part(50)
	name := fmt.Sprintf("SIGTERM while %d Services of 1000 source ranges come", n)
	var longest time.Duration
	for i := range moments {
		l, err := newWorldly(o.binary, worldOf(o.part(1000), 3))
		if err != nil {
			return err
		}
		err = func() error {
			if _, err := l.start(); err != nil {
				return err
			}
			coming := worldOf(n, 3, restricted(1000))
			coming.fill(l.server)
			time.Sleep(time.Duration(i) * 2 * calm)
			took, err := l.farewell()
			if err != nil {
				return err
			}
			longest = max(longest, took)
			return l.answers(l.last)
		}()
		if err != nil {
			return fmt.Errorf("%s: %w", name, errors.Join(err, l.close()))
		}
		if err := l.close(); err != nil {
			return err
		}
	}
	c.add(name, "longest until the exit", seconds, longest.Seconds(), nothing, most(longestFarewell.Seconds()))
	return nil
}
