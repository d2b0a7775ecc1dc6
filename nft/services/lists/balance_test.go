package lists

import (
	"math"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

func TestCapacity(t *testing.T) {
	want := map[int]int{0: 0, 1: 1, 2: 4, 3: 4, 4: 4, 5: 8, 10: 12, 32: 32, 33: 40, 64: 64, 65: 80, 999: 1024, 1001: 1024,
		1025: 1280, 65535: 65536}
	for n, c := range want {
		if got := tracker.Capacity(n); got != c {
			t.Errorf("capacity of a list of %d: got %d, want %d", n, got, c)
		}
	}
	for n := 1; n < 5000; n++ {
		c := tracker.Capacity(n)
		p := Balance{Capacity: c}
		if n > c || tracker.Capacity(c) != c || c-n > max(3, n/4) || c > exactLengths && p.lower().Capacity >= n {
			t.Errorf("list of %d: capacity %d, below that %d", n, c, p.lower().Capacity)
		}
	}
}

// TestChoiceIsUniform follows the choice among the endpoints of lists of many lengths.
func TestChoiceIsUniform(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 6, 9, 10, 13, 16, 17, 29, 33, 57, 64, 65, 97, 513, 1000, 1025} {
		d := newDistribution(n)
		left := d.follow(Balance{Capacity: tracker.Capacity(n)}.Name(), 1)
		if left > 0 {
			t.Errorf("list of %d: %g of the connections come to no endpoint", n, left)
		}
		for i, p := range d.chance {
			if off := math.Abs(p*float64(n) - 1); off > 1e-3 || n <= exactLengths && off > 1e-12 {
				t.Errorf("list of %d: endpoint %d has a chance of %g", n, i, p)
			}
		}
	}
}

// A distribution is the chance of each endpoint of one list.
type distribution struct {
	table  *nft.Table
	chance []float64
}

func newDistribution(n int) *distribution {
	d := &distribution{table: nft.NewTable(nft.IP), chance: make([]float64, n)}
	d.declare(Balance{Capacity: tracker.Capacity(n)})
	return d
}

// declare adds the chains of a choice to the table.
func (d *distribution) declare(b Balance) {
	for _, chain := range b.Chains() {
		d.table.Chains[chain.Name] = chain
	}
	for _, next := range b.Next() {
		d.declare(next)
	}
}

// follow sends a share of the connections into a chain and returns what comes back from it.
func (d *distribution) follow(chain string, share float64) (left float64) {
	for _, rule := range d.table.Chains[chain].Rules {
		switch s := rule[0].(type) {
		case nft.DNATFrom:
			if s.Protocol != unix.IPPROTO_TCP {
				continue
			}
			share = d.draw(modulusOf(s.Key[len(s.Key)-1]), share)
		case nft.Verdict:
			switch s.Kind {
			case nft.VerdictJump:
				share = d.follow(s.Chain, share)
			case nft.VerdictGoto:
				return d.follow(s.Chain, share)
			}
		}
	}
	return share
}

// modulusOf returns among how many indexes a part of a key chooses.
func modulusOf(index nft.Part) (n int) {
	for n = 1; n < 1<<16 && index != nft.RandomIndex(uint32(n)); n++ {
	}
	return n
}

func (d *distribution) draw(modulus int, share float64) (left float64) {
	hit := min(len(d.chance), modulus)
	for i := range hit {
		d.chance[i] += share / float64(modulus)
	}
	if hit == modulus {
		return 0
	}
	return share * float64(modulus-hit) / float64(modulus)
}
