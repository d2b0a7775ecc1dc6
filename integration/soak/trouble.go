package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/kube-nft/kube-nft/integration/apiserver"
)

// Trouble is what an API server and others on the node do to kube-nft.
type trouble struct {
	server  *apiserver.Server
	random  *rand.Rand
	faults  int // of the API server, so far
	drifts  int // commits that others tried, so far
	refused int // of them, as our tables belong to kube-nft
	moves   int // of addresses, so far
}

// shortest and longest are how long a fault of the API server lasts.
const (
	shortest = 50 * time.Millisecond
	longest  = 800 * time.Millisecond
)

func (t *trouble) while() time.Duration {
	return shortest + time.Duration(t.random.Int64N(int64(longest-shortest)))
}

// fault lets the API server do something that API servers do. It seldom fails altogether:
// after each failure client-go waits for twice as long as before, and there would be nothing
// else to see.
func (t *trouble) fault() error {
	t.faults++
	switch t.random.IntN(20) {
	case 0, 1, 2:
		t.server.CutWatches()
	case 3, 4, 5:
		t.server.Gone()
	case 6, 7, 8, 9:
		t.server.Replay(1 + t.random.IntN(50))
	case 10, 11, 12:
		t.server.Duplicate(t.random.IntN(2) == 0)
	case 13, 14, 15:
		t.server.Delay(t.while() / 4)
	case 16, 17:
		t.server.Bookmark()
	case 18:
		if err := t.server.Down(true); err != nil {
			return err
		}
		time.Sleep(t.while())
		return t.server.Down(false)
	case 19:
		t.server.Fail([]int{http.StatusInternalServerError, http.StatusTooManyRequests,
			http.StatusServiceUnavailable}[t.random.IntN(3)])
		time.Sleep(t.while())
		t.server.Fail(0)
	}
	return nil
}

// calm ends what lasts: faults of the API server, addresses of the node.
func (t *trouble) calm() {
	t.server.Duplicate(false)
	t.server.Delay(0)
	for i := range visiting {
		for f := range families {
			_ = families[f].visit(i, false) // fails if it is not there
		}
	}
}

// flushAll is the command of nft that skips tables which have an owner.
const flushAll = "flush ruleset"

// onOurs are commands of nft that change kube-nft's tables, onOthers those that do not.
var (
	onOurs = [...]string{
		flushAll,
		"delete table ip kube-nft",
		"delete table ip6 kube-nft",
		"delete table ip kube-nft; delete table ip6 kube-nft",
		"flush chain ip kube-nft services",
		"insert rule ip kube-nft services drop",
		"insert rule ip6 kube-nft services drop",
		"flush map ip kube-nft endpoints-tcp",
		"flush map ip6 kube-nft endpoints-tcp",
		"flush map ip kube-nft services",
		"add chain ip kube-nft foreign",
		"add element ip kube-nft cluster-ips { 10.111.111.111 }",
	}
	onOthers = [...]string{
		"add table inet other; add chain inet other input { type filter hook input priority 0; }; add rule inet other " +
			"input counter",
		"delete table inet other",
		"add table ip other; add chain ip other out { type nat hook output priority -100; }; add rule ip other out ip " +
			"daddr 203.0.113.99 dnat to 203.0.113.98",
		"delete table ip other",
	}
)

// drift lets nft change something: our tables, or others'. What it says about objects that
// are not there is no matter.
func (t *trouble) drift() error {
	_, err := t.commit(oneOf(t.random, append(onOurs[:], onOthers[:]...)))
	return err
}

// driftRefused lets nft change others' tables, and try to change ours if they belong to
// kube-nft.
func (t *trouble) driftRefused() error {
	if _, err := t.commit(oneOf(t.random, onOthers[:])); err != nil {
		return err
	}
	if owned, err := owned(); err != nil || !owned {
		return err
	}
	command := oneOf(t.random, onOurs[:])
	done, err := t.commit(command)
	switch {
	case err != nil:
		return err
	case !done:
		t.refused++
	case command != flushAll:
		return fmt.Errorf("nft %s: done, although the table belongs to kube-nft", command)
	}
	return nil
}

func oneOf(random *rand.Rand, from []string) string { return from[random.IntN(len(from))] }

// commit runs a command of nft and reports whether nft did it.
func (t *trouble) commit(command string) (done bool, err error) {
	t.drifts++
	_, err = run("nft", command)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return false, nil
	}
	return err == nil, err
}

// owned asks the kernel whether it refuses a commit to our tables, without one.
func owned() (bool, error) {
	out, err := run("nft", "--check", "add chain ip kube-nft foreign; add chain ip6 kube-nft foreign")
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && strings.Contains(out, "Operation not permitted") {
		return true, nil
	}
	return false, err
}

// run runs a program and returns what it says.
func run(argv ...string) (string, error) {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), err
}

// move gives the node an address or takes it away.
func (t *trouble) move() {
	t.moves++
	f := &families[t.random.IntN(len(families))]
	_ = f.visit(t.random.IntN(visiting), t.random.IntN(2) == 0) // fails to take away what is not there
}
