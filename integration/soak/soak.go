package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
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
	desks      *desks
	traffic    *traffic
	hurry      atomic.Bool // of the clients: in trouble that costs answers
	wrong      chan error  // what ends the run, from those who serve and ask
	daemon     *lab.Process
	kills      int
	samples    []usage
}

// newSoak makes everything but kube-nft.
func newSoak(p *plan, out io.Writer) (s *soak, err error) {
	random := rand.New(rand.NewPCG(p.seed, 0))
	s = &soak{plan: p, out: out, random: random, server: apiserver.New(), wrong: make(chan error, 1)}
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
	s.cluster = newCluster(s.server, rand.New(rand.NewPCG(p.seed, 1)), p.services)
	if s.desks, err = newDesks(s.complain); err != nil {
		return s, err
	}
	s.traffic = newTraffic(s.rules(), p.services, p.seed)
	return s, nil
}

// rules are the clients' rules.
func (s *soak) rules() rules {
	return rules{ledger: s.cluster.ledger, desks: s.desks, hurry: &s.hurry, strict: s.chaos, complain: s.complain,
		pulse: new(pulse)}
}

// complain keeps the first error.
func (s *soak) complain(err error) {
	select {
	case s.wrong <- err:
	default:
	}
}

// close ends everything.
func (s *soak) close() (err error) {
	if s.traffic != nil {
		s.traffic.end()
	}
	if s.daemon != nil {
		s.daemon.Kill()
	}
	s.server.Close()
	if s.desks != nil {
		err = s.desks.close()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// flags are the flags of kube-nft and of kube-nft diff.
func (s *soak) flags() []string {
	var pods, nodes []string
	for _, f := range families {
		pods, nodes = append(pods, f.pods.String()), append(nodes, f.nodes.String())
	}
	return []string{
		"--kubeconfig", s.kubeconfig, "--hostname-override", lab.NodeName,
		"--cluster-cidr", strings.Join(pods, ","), "--nodeport-addresses", strings.Join(nodes, ","),
	}
}

// start starts kube-nft: with -chaos as the owner of its tables, on a node that seems to have
// been running for some other time, up to ten years.
func (s *soak) start() (err error) {
	argv := []string{s.binary}
	if s.chaos {
		const tenYears = 10 * 365 * 24 * 3600
		uptime := fmt.Sprint(s.random.IntN(tenYears))
		argv = []string{"unshare", "--time", "--monotonic", uptime, "--boottime", uptime, "--", s.binary,
			"--table-ownership=auto"}
	}
	s.daemon, err = lab.StartProcess(append(argv, s.flags()...)...)
	return err
}

// diff returns what kube-nft would change in the kernel: nothing, if that holds what a fresh
// start would program.
func (s *soak) diff() (string, error) {
	out, err := lab.Execute(append([]string{s.binary, "diff"}, s.flags()...)...)
	if err == nil && out.Code != 0 && (out.Code != 1 || out.Stdout == "") {
		err = fmt.Errorf("kube-nft diff: exit code %d\n%s", out.Code, out.Stderr)
	}
	return out.Stdout, err
}

// run lets trouble and calm take turns.
func (s *soak) run(ctx context.Context) error {
	fmt.Fprintf(s.out, "seed %d, %d Services, at least %s\n", s.seed, s.services, s.duration)
	if err := s.start(); err != nil {
		return err
	}
	if err := s.settle(ctx, 1); err != nil {
		return err
	}
	s.traffic.start(ctx)
	for end := time.Now().Add(s.duration); time.Now().Before(end) && ctx.Err() == nil; {
		if err := s.turn(ctx); err != nil {
			return err
		}
	}
	return s.finish(ctx)
}

// finish checks the state after the end.
func (s *soak) finish(ctx context.Context) error {
	s.traffic.end()
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if err := errors.Join(s.verdict(), leak(s.samples)); err != nil {
		return err
	}
	s.cluster.unshare()
	if err := s.settle(ctx, steady); err != nil {
		return err
	}
	if err := s.startFresh(ctx); err != nil {
		return err
	}
	sum, slowest := s.traffic.total()
	fmt.Fprintf(s.out, "the slowest answer took %.2f s: %s; the machine stood still for %.1f s, which does not count\n",
		sum.slowest.Seconds(), slowest, s.traffic.pulse.stoodStill().Seconds())
	if s.chaos {
		fmt.Fprintf(s.out,
			"no wrong delivery and no failed exchange among %d but for %d UDP answers in flight, nothing is left over: as "+
				"expected\n", sum.answers+sum.inFlight, sum.inFlight)
	} else {
		fmt.Fprintf(s.out, "no wrong delivery among %d exchanges, nothing grew, nothing is left over: as expected\n",
			sum.answers)
	}
	return nil
}

// startFresh ends kube-nft and compares what it leaves behind with what another one programs
// where there was nothing.
func (s *soak) startFresh(ctx context.Context) error {
	if err := s.daemon.Terminate(); err != nil {
		return err
	}
	if rest, err := s.diff(); err != nil || rest != "" {
		return errors.Join(err, errors.New("after the end the kernel differs from a fresh start's: "+rest))
	}
	have, err := list()
	if err != nil {
		return err
	}
	if _, err := run("nft", "delete table ip kube-nft; delete table ip6 kube-nft"); err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	if err := s.settle(ctx, 1); err != nil {
		return err
	}
	if err := s.daemon.Terminate(); err != nil {
		return err
	}
	want, err := list()
	if difference := compare(have, want); err == nil && difference != "" {
		return fmt.Errorf("after the end nft lists something else than after a fresh start:\n%.4000s", difference)
	}
	return err
}

// turn is one cycle.
func (s *soak) turn(ctx context.Context) error {
	s.hurry.Store(!s.chaos)
	changing, rest := context.WithCancel(ctx)
	var changes sync.WaitGroup
	changes.Go(func() { s.cluster.run(changing) })
	err := s.stir(ctx)
	rest()
	changes.Wait()
	s.trouble.calm()
	if err != nil || ctx.Err() != nil {
		return err
	}
	started := time.Now()
	if err := s.settle(ctx, steady); err != nil || ctx.Err() != nil {
		return err
	}
	settled := time.Since(started)
	s.hurry.Store(false)
	if err := s.listen(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	return s.report(settled)
}

// How often something happens while there is trouble.
const (
	faultEvery = time.Second
	driftEvery = 1500 * time.Millisecond
	moveEvery  = 300 * time.Millisecond
	killEvery  = 4 * time.Second
)

// An event happens again and again.
type event struct {
	every, next time.Duration
	happen      func() error
}

// events are the events of a cycle.
func (s *soak) events() []*event {
	events := []*event{{every: faultEvery, happen: s.trouble.fault}}
	if !s.chaos {
		return append(events, &event{every: driftEvery, happen: s.trouble.drift})
	}
	return append(events,
		&event{every: driftEvery, happen: s.trouble.driftRefused},
		&event{every: moveEvery, happen: func() error { s.trouble.move(); return nil }},
		&event{every: killEvery, next: killEvery / 2, happen: s.restart})
}

// resolution is how exactly trouble keeps to its times.
const resolution = 20 * time.Millisecond

// stir makes trouble for a cycle. One thing happens after the other, so that a seed stands
// for one order.
func (s *soak) stir(ctx context.Context) error {
	events := s.events()
	tick := time.NewTicker(resolution)
	defer tick.Stop()
	for started := time.Now(); time.Since(started) < s.cycle; {
		if going, err := s.wait(ctx, tick.C); !going {
			return err
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

// wait waits for a tick. It reports false if the run has come to an end before.
func (s *soak) wait(ctx context.Context, tick <-chan time.Time) (going bool, err error) {
	select {
	case <-ctx.Done():
		return false, nil
	case err := <-s.wrong:
		return false, s.daemon.Failure(err)
	case <-s.daemon.Exited():
		return false, s.daemon.Running()
	case <-tick:
		return true, nil
	}
}

// restart kills kube-nft and starts it again.
func (s *soak) restart() error {
	s.kills++
	s.daemon.Kill()
	return s.start()
}

// patience bounds how long kube-nft takes to catch up: an informer waits for up to 15 s, and
// then some, before it asks an API server again that failed several times.
const patience = 90 * time.Second

// steady is how often in a row, 250 ms apart, the kernel has to hold what is wanted after trouble. kube-nft
// removes stale connections beside its loop, after a rest of up to three times the last look.
const steady = 12

// settle waits until the kernel has held what a fresh start would program so many times in a row.
func (s *soak) settle(ctx context.Context, times int) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	same := 0
	for end := time.Now().Add(patience); ; {
		rest, err := s.diff()
		same++
		switch {
		case err != nil:
			return err
		case rest != "":
			same = 0
		case same == times:
			s.cluster.ledger.settled()
			return nil
		}
		if time.Now().After(end) {
			return s.daemon.Failure(fmt.Errorf("after %s of calm the kernel lacks:\n%.2000s", patience, rest))
		}
		if going, err := s.wait(ctx, tick.C); !going {
			return err
		}
	}
}

// enough is how many answers each client has to get in a calm.
const enough = 20

// listen waits until every client has been answered some times. None may go without an
// answer now.
func (s *soak) listen(ctx context.Context) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	began, before := time.Now(), make(map[*client]int)
	clients := slices.Concat(s.traffic.clients, s.traffic.followers)
	for _, c := range clients {
		before[c] = c.count().answers
	}
	for _, c := range clients {
		for {
			now := c.count()
			if now.failed.After(began) || time.Since(began) > patience {
				return s.daemon.Failure(fmt.Errorf("%s is not answered in a calm", c))
			}
			if now.answers >= before[c]+enough {
				break
			}
			if going, err := s.wait(ctx, tick.C); !going {
				return err
			}
		}
	}
	return nil
}

// longestOutage bounds how long a Service that stays is not answered: what nft deletes is
// repaired at once, and nothing else may cost an answer.
const longestOutage = 5 * time.Second

// verdict returns what those who ask and serve complain about.
func (s *soak) verdict() error {
	select {
	case err := <-s.wrong:
		return s.daemon.Failure(err)
	default:
	}
	if sum, _ := s.traffic.total(); sum.outage > longestOutage && !s.chaos { // with -chaos none may fail at all
		return s.daemon.Failure(fmt.Errorf("a Service that stays was not answered for %s", sum.outage))
	}
	return nil
}

// report samples what kube-nft uses and prints a line.
func (s *soak) report(settled time.Duration) error {
	used, err := scrapeUsage()
	if err != nil {
		return s.daemon.Failure(err)
	}
	if !s.chaos { // a process that is killed again and again has no time to leak
		s.samples = append(s.samples, used)
	}
	sum, _ := s.traffic.total()
	fmt.Fprintf(s.out,
		"%6d changes %4d faults %3d jumps %4d drifts (%4d refused) %3d kills %4d moves | calm after %5.2f s | %7d answers "+
			"%4d lost %3d in flight, slowest %4.2f s, outage at most %4.2f s | %3.0f goroutines %3.0f descriptors %5.1f MiB\n",
		s.cluster.changes, s.trouble.faults, s.cluster.jumps, s.trouble.drifts, s.trouble.refused, s.kills, s.trouble.moves,
		settled.Seconds(),
		sum.answers, sum.lost, sum.inFlight, sum.slowest.Seconds(), sum.outage.Seconds(), used.goroutines, used.descriptors,
		used.memory/(1<<20))
	return s.verdict()
}
