package golden

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// manyServices is the larger one of the two clusters that are compared.
const manyServices = 10000

// plainPort makes up the number-th Service port of a cluster: every tenth one is of the
// same shape as the one ten before.
func plainPort(number int) *tracker.ServicePort {
	host := netip.AddrFrom4([4]byte{10, 96, byte(number >> 8), byte(number)})
	p := &tracker.ServicePort{
		ID:        tracker.PortID{Namespace: "shop", Service: fmt.Sprintf("web-%d", number), Port: "http", Protocol: tracker.TCP, Family: tracker.IPv4},
		Created:   time.Unix(1, 0),
		Port:      80,
		ClusterIP: host,
	}
	switch number % 10 {
	case 1:
		p.ID.Protocol, p.Port = tracker.UDP, 53
	case 2, 3:
		p.NodePort = uint16(20000 + number)
	case 4:
		p.NodePort, p.ExternalLocal = uint16(20000+number), true
	case 5:
		p.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 97, byte(number >> 8), byte(number)})}
	case 6:
		p.LoadBalancers = []netip.Addr{netip.AddrFrom4([4]byte{10, 98, byte(number >> 8), byte(number)})}
		p.Guarded, p.Sources = true, []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	case 7:
		p.InternalLocal = true
	}
	return withEndpoints(p, number%10)
}

// withEndpoints gives a port so many endpoints, the first of them on this node.
func withEndpoints(p *tracker.ServicePort, n int) *tracker.ServicePort {
	q := *p
	q.Cluster, q.Local, q.OnNode, q.Serving = nil, nil, nil, nil
	for i := range n {
		host := p.ClusterIP.As4()
		q.Cluster = append(q.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, byte(i), host[2], host[3]}), 8080))
	}
	q.Serving, q.HasEndpoints = q.Cluster, n > 0
	if n > 0 && (q.InternalLocal || q.ExternalLocal) {
		q.Local, q.OnNode = q.Cluster[:1], q.Cluster[:1]
	}
	return &q
}

// cluster returns the delta that makes n Services.
func cluster(n int) tracker.Delta {
	delta := tracker.Delta{Changed: make(map[tracker.PortID]*tracker.ServicePort, n)}
	for number := range n {
		p := plainPort(number)
		delta.Changed[p.ID] = p
	}
	return delta
}

// commitCluster commits a ruleset for n Services.
func commitCluster(t testing.TB, k *kernel.Client, n int) *services.Ruleset {
	t.Helper()
	config, _ := scenarioSettings(t, []string{"--cluster-cidr=10.244.0.0/16"}).config(t)
	r := services.NewRuleset(config)
	r.Apply(cluster(n))
	commit(t, k, change.Diff(nil, r.Want()))
	r.Committed()
	return r
}

// size counts the objects of our tables, elements aside, and apart from them the chains of
// guarded policies: a Service with source ranges has one of its own.
func size(tables nft.Tables) (counts struct{ Tables, Chains, Rules, Sets int }, guarded int) {
	for _, table := range tables {
		counts.Tables++
		counts.Sets += len(table.Sets)
		for _, chain := range table.Chains {
			if strings.HasPrefix(chain.Name, "guarded-") {
				guarded++
				continue
			}
			counts.Chains++
			counts.Rules += len(chain.Rules)
		}
	}
	return counts, guarded
}

// TestSizeIsConstant counts chains, rules and sets in the kernel, anonymous ones included,
// for few and for many Services of the same policies and endpoint counts.
func TestSizeIsConstant(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	commitCluster(t, k, 10)
	few, _ := size(read(t, k))
	commit(t, k, change.Diff(read(t, k), nft.Tables{}))
	r := commitCluster(t, k, manyServices)
	tables := read(t, k)
	withRanges := 0
	for _, p := range cluster(manyServices).Changed {
		if p.Guarded {
			withRanges++
		}
	}
	if many, guarded := size(tables); many != few || guarded != withRanges {
		t.Errorf("%d Services: %+v, 10 Services: %+v; %d chains for the ranges of %d Services", manyServices, many, few, guarded, withRanges)
	}
	if n := len(tables[nft.IP].Sets["services"].Map); n < manyServices {
		t.Errorf("map services has %d elements for %d Services", n, manyServices)
	}
	if repair := change.Diff(tables, r.Want()); !repair.Empty() {
		t.Errorf("the kernel lacks %d operations", len(repair.Ops))
	}
}

// TestCostIsConstant adds an endpoint to one of few and to one of many Services and takes
// it away again: the kernel gets the same few messages.
func TestCostIsConstant(t *testing.T) {
	grown := map[string]int{"add element ip endpoints": 1, "delete element ip services": 1, "add element ip services": 1}
	shrunk := map[string]int{"delete element ip endpoints": 1, "delete element ip services": 1, "add element ip services": 1}
	for _, n := range []int{20, manyServices} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			lab.New(t)
			k := lab.Open(t, kernel.Open)
			r := commitCluster(t, k, n)
			heard := lab.ListenToNotices(t)
			change := func(endpoints int, want map[string]int) {
				p := withEndpoints(plainPort(8), endpoints)
				r.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{p.ID: p}})
				commit(t, k, r.Changes())
				r.Committed()
				if diff := cmp.Diff(want, lab.Summary(heard.Next(t, lab.Any))); diff != "" {
					t.Errorf("%d endpoints (-want +got):\n%s", endpoints, diff)
				}
			}
			change(9, grown)
			change(8, shrunk)
		})
	}
}
