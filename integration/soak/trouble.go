package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/kube-nft/kube-nft/integration/apiserver"
)

// Trouble is what an API server and others on the node do to kube-nft.
type trouble struct {
	server *apiserver.Server
	random *rand.Rand
	faults int // of the API server, so far
	drifts int // commits of others, so far
	moves  int // of addresses, so far
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
		t.server.Fail([]int{http.StatusInternalServerError, http.StatusTooManyRequests, http.StatusServiceUnavailable}[t.random.IntN(3)])
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
		_ = setAddress(visitor(i), false) // fails if it is not there
	}
}

// drifts are commands of nft. Some are about tables that are not kube-nft's.
var drifts = [...]string{
	"flush ruleset",
	"delete table ip kube-nft",
	"delete table ip6 kube-nft",
	"flush chain ip kube-nft services",
	"insert rule ip kube-nft services drop",
	"flush map ip kube-nft endpoints",
	"flush map ip kube-nft services",
	"add chain ip kube-nft foreign",
	"add element ip kube-nft cluster-ips { 10.111.111.111 }",
	"add table inet other; add chain inet other input { type filter hook input priority 0; }; add rule inet other input counter",
	"delete table inet other",
}

// drift lets nft change something. What it says about objects that are not there is no matter.
func (t *trouble) drift() error {
	t.drifts++
	command := drifts[t.random.IntN(len(drifts))]
	out, err := exec.Command("nft", command).CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("nft %s: %w: %s", command, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// visiting are how many addresses the node may get besides its own.
const visiting = 8

func visitor(i int) netip.Addr { return after(nodeAddress, 100+i) }

// move gives the node an address or takes it away.
func (t *trouble) move() {
	t.moves++
	_ = setAddress(visitor(t.random.IntN(visiting)), t.random.IntN(2) == 0) // fails to take away what is not there
}
