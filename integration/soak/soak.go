package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/kube-nft/kube-nft/integration/apiserver"
)

// A soak is one run of the program.
type soak struct {
	*plan
	out        io.Writer
	random     *rand.Rand
	dir        string
	kubeconfig string
	server     *apiserver.Server
	cluster    *cluster
	trouble    *trouble
	sockets    []io.Closer
	clients    []*client
	daemon     *daemon
	kills      int
	samples    []usage
}

// newSoak makes everything but kube-nft.
func newSoak(p *plan, out io.Writer) (s *soak, err error) {
	random := rand.New(rand.NewPCG(p.seed, 0))
	s = &soak{plan: p, out: out, random: random, server: apiserver.New()}
	s.trouble = &trouble{server: s.server, random: random}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := setUpNode(); err != nil {
		return s, fmt.Errorf("set up the node: %w", err)
	}
	if s.dir, err = os.MkdirTemp("", "kube-nft-soak-"); err != nil {
		return s, err
	}
	if _, err = s.server.Start("127.0.0.1:0"); err != nil {
		return s, err
	}
	if s.kubeconfig, err = s.server.Kubeconfig(s.dir); err != nil {
		return s, err
	}
	s.cluster = newCluster(s.server, random, p.services)
	return s, s.people()
}

// people makes the servers and the clients.
func (s *soak) people() error {
	for _, addr := range allServers() {
		sockets, err := serve(addr)
		s.sockets = append(s.sockets, sockets...)
		if err != nil {
			return err
		}
	}
	for _, network := range []string{"tcp4", "udp4"} {
		for _, service := range []netip.Addr{steadyIP, rollingIP} {
			c, err := newClient(network, service)
			if err != nil {
				return err
			}
			s.clients = append(s.clients, c)
		}
	}
	return nil
}

// close ends everything.
func (s *soak) close() (err error) {
	if s.daemon != nil {
		s.daemon.kill()
	}
	s.server.Close()
	for _, socket := range s.sockets {
		err = errors.Join(err, socket.Close())
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// run lets trouble and calm take turns.
func (s *soak) run(ctx context.Context) (err error) {
	fmt.Fprintf(s.out, "seed %d, %d Services, at least %s\n", s.seed, s.services, s.duration)
	if s.daemon, err = startDaemon(s.binary, s.kubeconfig); err != nil {
		return err
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	for end := time.Now().Add(s.duration); time.Now().Before(end) && ctx.Err() == nil; {
		if err := s.turn(ctx); err != nil {
			return err
		}
	}
	if err := leak(s.samples); err != nil {
		return err
	}
	if err := s.daemon.terminate(); err != nil {
		return err
	}
	if rest, err := diff(s.binary, s.kubeconfig); err != nil || rest != "" {
		return errors.Join(err, errors.New("after the end the kernel differs from a fresh start's: "+rest))
	}
	fmt.Fprintln(s.out, "nothing grew, nothing is left over: as expected")
	return nil
}

// turn is one cycle.
func (s *soak) turn(ctx context.Context) error {
	talking, hush := context.WithCancel(ctx)
	var clients sync.WaitGroup
	for _, c := range s.clients {
		clients.Go(func() { c.run(talking) })
	}
	err := s.stir(ctx)
	hush()
	clients.Wait()
	s.trouble.calm()
	if err != nil || ctx.Err() != nil {
		return err
	}
	started := time.Now()
	if err := s.settle(ctx); err != nil {
		return err
	}
	return s.report(time.Since(started))
}

// How often something happens while there is trouble.
const (
	changeEvery = 20 * time.Millisecond
	faultEvery  = time.Second
	driftEvery  = 1500 * time.Millisecond
	moveEvery   = 300 * time.Millisecond
	killEvery   = 4 * time.Second
)

// stir makes trouble for a cycle. One thing happens after the other, so that a seed stands
// for one order.
func (s *soak) stir(ctx context.Context) error {
	type event struct {
		every, next time.Duration
		happen      func() error
	}
	events := []*event{
		{every: changeEvery, happen: func() error { s.cluster.change(); return nil }},
		{every: faultEvery, happen: s.trouble.fault},
		{every: driftEvery, happen: s.trouble.drift},
	}
	if s.chaos {
		events = append(events,
			&event{every: moveEvery, happen: func() error { s.trouble.move(); return nil }},
			&event{every: killEvery, next: killEvery / 2, happen: s.restart})
	}
	tick := time.NewTicker(changeEvery)
	defer tick.Stop()
	for started := time.Now(); time.Since(started) < s.cycle; {
		select {
		case <-ctx.Done():
			return nil
		case <-s.daemon.exited:
			return s.daemon.alive()
		case <-tick.C:
		}
		for _, e := range events {
			if time.Since(started) < e.next {
				continue
			}
			e.next += e.every
			if err := e.happen(); err != nil {
				return err
			}
		}
	}
	return nil
}

// restart kills kube-nft and starts it again.
func (s *soak) restart() (err error) {
	s.kills++
	s.daemon.kill()
	s.daemon, err = startDaemon(s.binary, s.kubeconfig)
	return err
}

// patience bounds how long kube-nft takes to catch up: client-go waits for up to 30 s, and
// then some, before it asks an API server again that failed several times.
const patience = 90 * time.Second

// settle waits until the kernel holds what a fresh start would program. Then the clients have
// to be answered by current endpoints.
func (s *soak) settle(ctx context.Context) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; {
		rest, err := diff(s.binary, s.kubeconfig)
		switch {
		case err != nil:
			return err
		case rest == "":
			return s.talk(ctx)
		case time.Now().After(end):
			return s.daemon.failure(fmt.Sprintf("after %s of calm the kernel lacks:\n%.2000s", patience, rest))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.daemon.exited:
			return s.daemon.alive()
		case <-tick.C:
		}
	}
}

// talk has the clients check who answers.
func (s *soak) talk(ctx context.Context) error {
	for _, c := range s.clients {
		endpoints := allServers()
		if c.to.Addr() == rollingIP {
			endpoints = s.cluster.rolling
		}
		if err := c.check(ctx, endpoints); err != nil && ctx.Err() == nil {
			return s.daemon.failure(err.Error())
		}
	}
	return nil
}

// longestOutage bounds how long a Service that stays is not answered: what nft deletes is
// repaired at once, and nothing else may cost an answer.
const longestOutage = 5 * time.Second

// report samples what kube-nft uses and prints a line.
func (s *soak) report(settled time.Duration) error {
	used, err := scrapeUsage()
	if err != nil {
		return s.daemon.failure(err.Error())
	}
	if !s.chaos { // a process that is killed again and again has no time to leak
		s.samples = append(s.samples, used)
	}
	var answers, lost int
	var outage time.Duration
	for _, c := range s.clients {
		answers, lost, outage = answers+c.answers, lost+c.lost, max(outage, c.outage)
	}
	fmt.Fprintf(s.out, "%6d changes %4d faults %4d drifts %3d kills %4d moves | calm after %6.2f s | %7d answers %4d lost, outage at most %5.2f s | %3.0f goroutines %3.0f descriptors %6.1f MiB\n",
		s.cluster.changes, s.trouble.faults, s.trouble.drifts, s.kills, s.trouble.moves, settled.Seconds(),
		answers, lost, outage.Seconds(), used.goroutines, used.descriptors, used.memory/(1<<20))
	if outage > longestOutage && !s.chaos { // a kube-nft that was killed needs the API server to come back
		return s.daemon.failure(fmt.Sprintf("a Service that stays was not answered for %s", outage))
	}
	return nil
}
