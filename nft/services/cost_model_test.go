package services

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/wire"
	"github.com/kube-nft/kube-nft/tracker"
)

// A cost is what a ruleset takes in the kernel, anonymous sets included, and what is sent for it.
type cost struct{ sets, chains, rules, elements, messages, bytes int }

// costOf counts the netlink messages of a batch.
func costOf(t *testing.T, batch *nft.Batch) cost {
	t.Helper()
	var encoding wire.Encoding
	if err := encoding.Encode(batch, wire.Ours, 1); err != nil {
		t.Fatal(err)
	}
	c := cost{elements: batch.ElementCount(), bytes: len(encoding.Buf)}
	for rest := encoding.Buf; len(rest) > 0; rest = rest[(binary.NativeEndian.Uint32(rest)+3)&^3:] {
		c.messages++
		switch typ := binary.NativeEndian.Uint16(rest[4:]); {
		case typ>>8 != unix.NFNL_SUBSYS_NFTABLES:
		case typ&0xff == unix.NFT_MSG_NEWSET:
			c.sets++
		case typ&0xff == unix.NFT_MSG_NEWCHAIN:
			c.chains++
		case typ&0xff == unix.NFT_MSG_NEWRULE:
			c.rules++
		}
	}
	return c
}

// minus returns what c has more than d.
func (c cost) minus(d cost) cost {
	return cost{c.sets - d.sets, c.chains - d.chains, c.rules - d.rules, c.elements - d.elements, c.messages - d.messages,
		c.bytes - d.bytes}
}

// A costWorld is what a tenant can make of a cluster, as much of it as he likes.
type costWorld struct {
	name   string
	size   int // the smaller of two in tests; the other one is costGrowth times as large
	large  int // in benchmarks
	world  func(n int) tracker.Delta
	change func(n int) tracker.Delta // one small change of it
	// The bars, beside maxSets and setsEach: chains more than without any Service, elements for each frontend,
	// endpoint and range, and the messages and elements of the change.
	chains                         func(n int) int
	elements                       float64
	changeMessages, changeElements int
	setsEach                       int // how many sets of its own each Service has
}

const costGrowth = 4

// maxSets is how many sets and maps both families may have together, however many Services want
// something of their own.
const maxSets = 60

// usualChains are for lengths of lists and policies that do not exist from the start, and those that
// all Service ports with affinity share.
const usualChains = 12

func constantChains(int) int { return usualChains }

// costWorlds are two friendly worlds, and those that were not linear once. Tests count what they take, and
// BenchmarkWorlds measures the time.
func costWorlds() []costWorld {
	return []costWorld{
		{
			name: "plain Services", size: 200, large: 4000, elements: 1.5, changeMessages: 5, changeElements: 3,
			world:  func(n int) tracker.Delta { return cluster(n, 3) },
			change: func(int) tracker.Delta { return cluster(1, 2) },
			chains: constantChains,
		},
		{
			name: "Services of all policies", size: 1000, large: 10000, elements: 1.5, changeMessages: 5, changeElements: 3,
			world:  mixedWorld,
			change: func(int) tracker.Delta { return mixedChange() },
			chains: func(n int) int { return n/5 + 100 }, // each tenth has source ranges
		},
		{
			name: "Services with source ranges", size: 25, large: 100, elements: 1.5, changeMessages: 4, changeElements: 2,
			world: func(n int) tracker.Delta { return worldWithRanges(n, 100) },
			change: func(n int) tracker.Delta {
				delta := worldWithRanges(1, 100)
				for _, p := range delta.Changed {
					p.Sources[99] = netip.MustParsePrefix("30.0.0.0/24")
				}
				return delta
			},
			chains: func(n int) int { return 2*n + usualChains },
		},
		{
			name: "source ranges of a Service of 20 ports", size: 500, large: 5000, elements: 1.5, changeMessages: 4,
			changeElements: 2,
			world:          func(n int) tracker.Delta { return tracker.Delta{Changed: serviceWithRanges(20, n)} },
			change: func(n int) tracker.Delta {
				service := serviceWithRanges(20, n)
				for _, p := range service {
					p.Sources[n-1] = netip.MustParsePrefix("30.0.0.0/24")
				}
				return tracker.Delta{Changed: service}
			},
			chains: constantChains,
		},
		{
			name: "Services that claim one external IP", size: 250, large: 2000, elements: 1.5, changeMessages: 8,
			changeElements: 7,
			world:          func(n int) tracker.Delta { return claimants(n, true) },
			change: func(n int) tracker.Delta { // the winner goes with its five elements; another one takes the address
				winner := tracker.PortID{}
				for _, p := range claimants(n, true).Changed {
					if p.Created.Unix() == 1 {
						winner = p.ID
					}
				}
				return tracker.Delta{Removed: map[tracker.PortID]bool{winner: true}}
			},
			chains: constantChains,
		},
		{
			name: "one Service with external IPs and endpoints", size: 400, large: 2000, elements: 1.1, changeMessages: 3,
			changeElements: 1,
			world:          func(n int) tracker.Delta { return externalWorld(n, n/4) },
			change:         func(n int) tracker.Delta { return externalWorld(n, n/4+1) },
			chains:         func(int) int { return 1 + usualChains },
		},
		{
			name: "one Service of many ports", size: 100, large: 3000, elements: 1.5, changeMessages: 4, changeElements: 2,
			world:  func(n int) tracker.Delta { return portsWorld(n, 5) },
			change: func(n int) tracker.Delta { return onePort(portsWorld(n, 6)) },
			chains: constantChains,
		},
		{ // the verdict and the port, for each port
			name: "one Service of many ports with the same endpoints", size: 250, large: 1000, elements: 1.1, changeMessages: 3,
			changeElements: 1,
			world:          func(n int) tracker.Delta { return sharingWorld(n, n) },
			change:         func(n int) tracker.Delta { return sharingWorld(n, n+1) },
			chains:         func(int) int { return 1 + usualChains },
		},
		{ // each endpoint may reach itself
			name: "one Service of many ports with the same endpoints on this node", size: 250, large: 1000, elements: 1.5,
			changeMessages: 4, changeElements: 2,
			world:  func(n int) tracker.Delta { return onNodeWorld(sharingWorld(n, n)) },
			change: func(n int) tracker.Delta { return onNodeWorld(sharingWorld(n, n+1)) },
			chains: func(int) int { return 1 + usualChains },
		},
		{
			name: "Services with session affinity", size: 200, large: 4000, elements: 3, changeMessages: 24, changeElements: 10,
			world:  func(n int) tracker.Delta { return affinityWorld(cluster(n, 3)) },
			change: func(n int) tracker.Delta { return affinityWorld(cluster(1, 2)) },
			chains: func(n int) int { return 3*2*n + usualChains }, // of both families
		},
		{
			name: "Services with session affinity and all frontends", size: 200, large: 2500, elements: 3, changeMessages: 24,
			changeElements: 10,
			world:          func(n int) tracker.Delta { return affinityWorld(everywhere(cluster(n, 3))) },
			change:         func(n int) tracker.Delta { return affinityWorld(everywhere(cluster(1, 2))) },
			chains:         func(n int) int { return 3*2*n + usualChains },
		},
		{
			name: "one Service of many ports with session affinity", size: 100, large: 1000, elements: 3, changeMessages: 24,
			changeElements: 10,
			world:          func(n int) tracker.Delta { return affinityWorld(portsWorld(n, 5)) },
			change:         func(n int) tracker.Delta { return affinityWorld(onePort(portsWorld(n, 4))) },
			chains:         func(n int) int { return 3*2*n + usualChains },
		},
		{ // the endpoints that entries may name stand once for all ports
			name: "one Service of many ports with the same endpoints, session affinity and the policy Local", size: 100,
			large: 500, elements: 2.5, changeMessages: 6, changeElements: 4,
			world:  func(n int) tracker.Delta { return stickyLocal(sharingWorld(n, n)) },
			change: func(n int) tracker.Delta { return stickyLocal(sharingWorld(n, n+1)) },
			chains: func(n int) int { return 3*n + usualChains },
		},
		{
			name: "one Service with external IPs, endpoints and session affinity", size: 400, large: 2000, elements: 3,
			changeMessages: 24, changeElements: 10,
			world:  func(n int) tracker.Delta { return affinityWorld(externalWorld(n, n/4)) },
			change: func(n int) tracker.Delta { return affinityWorld(externalWorld(n, n/4-1)) },
			chains: func(int) int { return 3*2 + usualChains },
		},
		{
			name: "Services with all annotations and all frontends", size: 200, large: 2500, elements: 3, changeMessages: 24,
			changeElements: 16,
			world:          func(n int) tracker.Delta { return annotatedWorld(everywhere(cluster(n, 3))) },
			change:         func(n int) tracker.Delta { return annotatedWorld(everywhere(cluster(1, 2))) },
			chains:         func(n int) int { return 3*n + usualChains }, // those of the source ranges of a Service
		},
		{ // a table of 503 slots for 3 endpoints at each frontend; the change moves a third of it, and few others
			name: "Services with a hash", size: 20, large: 400, elements: 503.0/4 + 1, changeMessages: 8,
			changeElements: 2 * 2 * 190,
			world:          func(n int) tracker.Delta { return affinityWorldOf(0, maglevWorld(cluster(n, 3))) },
			change:         func(n int) tracker.Delta { return affinityWorldOf(0, maglevWorld(cluster(1, 2))) },
			chains:         constantChains,
		},
		{
			name: "Services with a hash and node ports", size: 20, large: 100, elements: 2*503.0/6 + 1, changeMessages: 16,
			changeElements: 2 * 2 * 190,
			world:          func(n int) tracker.Delta { return maglevWorld(withNodePorts(cluster(n, 3))) },
			change:         func(n int) tracker.Delta { return maglevWorld(withNodePorts(cluster(1, 2))) },
			chains:         constantChains,
		},
		{ // its frontends share a table, in a map of its own
			name: "Services with a hash and all frontends", size: 20, large: 100, elements: 503.0/10 + 1, changeMessages: 8,
			changeElements: 2 * 190, setsEach: 1,
			world:  func(n int) tracker.Delta { return maglevWorld(everywhere(cluster(n, 3))) },
			change: func(n int) tracker.Delta { return maglevWorld(everywhere(cluster(1, 2))) },
			chains: func(n int) int { return 5*n + usualChains },
		},
		{ // 600 frontends share 503 slots
			name: "one Service with external IPs and a hash", size: 150, large: 600, elements: 4.5, changeMessages: 8,
			changeElements: 2 * 190,
			world:          func(n int) tracker.Delta { return maglevWorld(externalWorld(n, 3)) },
			change:         func(n int) tracker.Delta { return maglevWorld(externalWorld(n, 2)) },
			chains:         constantChains,
		},
		{
			name: "Services with weights", size: 200, large: 4000, elements: 3, changeMessages: 8, changeElements: 20,
			world:  func(n int) tracker.Delta { return weightedWorld(cluster(n, 3), 0) },
			change: func(n int) tracker.Delta { return weightedWorld(cluster(1, 3), 1) },
			chains: constantChains,
		},
	}
}

// onNodeWorld puts the endpoints of a world on this node.
func onNodeWorld(delta tracker.Delta) tracker.Delta {
	for _, p := range delta.Changed {
		p.OnNode = p.Cluster
	}
	return delta
}

// stickyLocal gives the Service ports of a world session affinity, and an external IP with the policy Local.
func stickyLocal(delta tracker.Delta) tracker.Delta {
	for _, p := range delta.Changed {
		p.Affinity, p.ExternalLocal, p.Local = time.Hour, true, p.Cluster
		p.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	}
	return delta
}

// mixedWorld has Services of each policy and of 0 to 9 endpoints; each has the shape of the one ten before.
func mixedWorld(n int) tracker.Delta {
	delta := tracker.Delta{}
	for i := range n {
		p := clusterPort(i, i%10)
		p.HasEndpoints = i%10 > 0
		switch i % 10 {
		case 1:
			p.ID.Protocol, p.Port = tracker.UDP, 53
		case 2, 3:
			p.NodePort = uint16(20000 + i)
		case 4:
			p.NodePort, p.ExternalLocal = uint16(20000+i), true
		case 5:
			p.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})}
		case 6:
			p.LoadBalancers = []netip.Addr{netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})}
			p.HasSourceRanges, p.Sources = true, []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
		case 7:
			p.InternalLocal = true
		}
		if p.InternalLocal || p.ExternalLocal {
			p.Local, p.OnNode = p.Cluster[:1], p.Cluster[:1]
		}
		delta.Changed = append(delta.Changed, p)
	}
	return delta
}

// mixedChange takes an endpoint from a plain Service of mixedWorld.
func mixedChange() tracker.Delta {
	p := clusterPort(8, 8)
	p.Cluster = p.Cluster[:7]
	p.Serving = p.Cluster
	return tracker.Delta{Changed: []*tracker.ServicePort{p}}
}

// worldWithRanges has so many Services, each with one port and source ranges of its own.
func worldWithRanges(services, ranges int) tracker.Delta {
	delta := tracker.Delta{}
	for i := range services {
		for _, p := range serviceWithRanges(1, ranges) {
			other := clusterPort(i, 2)
			p.ID, p.UID, p.ClusterIP, p.Lists = other.ID, other.UID, other.ClusterIP, other.Lists
			p.LoadBalancers = []netip.Addr{netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})}
			delta.Changed = append(delta.Changed, p)
		}
	}
	return delta
}

// externalWorld has one Service with so many external IPs and endpoints.
func externalWorld(addresses, endpoints int) tracker.Delta {
	p := clusterPort(0, endpoints)
	for i := range addresses {
		p.ExternalIPs = append(p.ExternalIPs, netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}))
	}
	return tracker.Delta{Changed: []*tracker.ServicePort{p}}
}

// cpuTime is what this process has used of the CPUs, in the kernel as well. On a busy machine it says
// more than the time that passes.
func cpuTime(b *testing.B) time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// annotatedWorld gives the Service ports of a world source ranges, policies Local and all annotations.
func annotatedWorld(delta tracker.Delta) tracker.Delta {
	for _, p := range delta.Changed {
		p.InternalLocal, p.ExternalLocal = true, true
		p.HasSourceRanges, p.Sources = true, []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")}
		p.Settings = tracker.Settings{KeepUnreadyUDP: true, ResetDeparted: true, LocalFallback: true,
			SourceRangesForNodePorts: true, Ping: true}
		p.RangesForNodePort = true
	}
	return delta
}

// affinityWorld gives the Service ports of a world session affinity, and makes as many of IPv6.
func affinityWorld(delta tracker.Delta) tracker.Delta { return affinityWorldOf(3*time.Hour, delta) }

// affinityWorldOf is affinityWorld with a timeout; 0 is no affinity.
func affinityWorldOf(timeout time.Duration, delta tracker.Delta) tracker.Delta {
	both := tracker.Delta{}
	six := func(a netip.Addr) netip.Addr {
		b := netip.MustParseAddr("fd00::").As16()
		copy(b[12:], a.AsSlice())
		return netip.AddrFrom16(b)
	}
	for _, p := range delta.Changed {
		p.Affinity = timeout
		both.Changed = append(both.Changed, p)
		q := *p
		q.PortSpec = new(*q.PortSpec)
		q.ID.Family, q.ClusterIP = tracker.IPv6, six(p.ClusterIP)
		q.ExternalIPs, q.LoadBalancers, q.Lists = nil, nil, new(tracker.Lists)
		for _, a := range p.ExternalIPs {
			q.ExternalIPs = append(q.ExternalIPs, six(a))
		}
		for _, a := range p.LoadBalancers {
			q.LoadBalancers = append(q.LoadBalancers, six(a))
		}
		for _, ep := range p.Cluster {
			q.Cluster = append(q.Cluster, netip.AddrPortFrom(six(ep.Addr()), ep.Port()))
		}
		q.Serving = q.Cluster
		both.Changed = append(both.Changed, &q)
	}
	return both
}

// everywhere gives the Service ports of a world a node port, an address of a load balancer and an
// external IP.
func everywhere(delta tracker.Delta) tracker.Delta {
	for _, p := range withNodePorts(delta).Changed {
		b := p.ClusterIP.As4()
		p.LoadBalancers = []netip.Addr{netip.AddrFrom4([4]byte{198, 51, b[2], b[3]})}
		p.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, b[2], b[3]})}
	}
	return delta
}

// withNodePorts gives each Service a node port.
func withNodePorts(delta tracker.Delta) tracker.Delta {
	for _, p := range delta.Changed {
		b := p.ClusterIP.As4()
		p.NodePort = 20000 + uint16(b[2])<<8 + uint16(b[3])
	}
	return delta
}

// portsWorld has one Service of many ports, each with endpoints at a port of their own.
func portsWorld(ports, endpoints int) tracker.Delta {
	delta := tracker.Delta{}
	for i := range ports {
		p := clusterPort(0, endpoints)
		p.ID.Port, p.Port, p.NodePort = fmt.Sprintf("port-%d", i), uint16(1000+i), uint16(20000+i)
		for e := range p.Cluster {
			p.Cluster[e] = netip.AddrPortFrom(p.Cluster[e].Addr(), uint16(8000+i))
		}
		delta.Changed = append(delta.Changed, p)
	}
	return delta
}

// onePort keeps the first port of a Service.
func onePort(delta tracker.Delta) tracker.Delta {
	return tracker.Delta{Changed: delta.Changed[:1]}
}

// objects counts what the API's objects name: frontends, endpoints and ranges. Ports of one
// Service share its ranges.
func objects(delta tracker.Delta) (n int) {
	ranges, shared := make(map[string]int), make(map[*netip.AddrPort]bool)
	for _, p := range delta.Changed {
		n += 1 + len(p.ExternalIPs) + len(p.LoadBalancers)
		if len(p.Cluster) > 0 && p.TargetPort != 0 { // ports that share their endpoints name a port each
			if n++; shared[&p.Cluster[0]] {
				continue
			}
			shared[&p.Cluster[0]] = true
		}
		n += len(p.Cluster)
		if p.NodePort != 0 {
			n += 1 + len(p.Cluster) // the endpoints of a node port stand in maps of their own
		}
		ranges[p.ID.Namespace+"/"+p.ID.Service] = len(p.Sources)
	}
	for _, r := range ranges {
		n += r
	}
	return n
}

// TestCostModel holds each world, at two sizes, to its bars: whatever a tenant asks for, it is
// linear in what he writes, and a change of it does not depend on how much there is.
func TestCostModel(t *testing.T) {
	for _, w := range costWorlds() {
		t.Run(w.name, func(t *testing.T) {
			empty := change.Diff(nil, NewRuleset(testConfig()).Want())
			none := costOf(t, &empty)
			var costs, changes [2]cost
			for i, n := range []int{w.size, costGrowth * w.size} {
				r := NewRuleset(testConfig())
				r.Apply(w.world(n))
				batch := change.Diff(nil, r.Want())
				whole := costOf(t, &batch)
				costs[i] = whole.minus(none)
				if most := maxSets + n*w.setsEach; whole.sets > most {
					t.Errorf("size %d: %d sets, want at most %d", n, whole.sets, most)
				}
				if most := w.chains(n); costs[i].chains > most {
					t.Errorf("size %d: %d chains, want at most %d", n, costs[i].chains, most)
				}
				if most := int(w.elements * float64(objects(w.world(n)))); costs[i].elements > most {
					t.Errorf("size %d: %d elements, want at most %d", n, costs[i].elements, most)
				}
				r.Committed()
				r.Apply(w.change(n))
				batch = r.Changes()
				changes[i] = costOf(t, &batch)
				if c := changes[i]; c.elements > w.changeElements || c.messages > w.changeMessages || c.elements == 0 {
					t.Errorf("size %d: a change is %d elements in %d messages, want at most %d in %d", n, c.elements, c.messages,
						w.changeElements, w.changeMessages)
				}
			}
			small, large := costs[0], costs[1]
			if large.sets-small.sets != (costGrowth-1)*w.size*w.setsEach {
				t.Errorf("%d sets and %d at %d times the size", small.sets, large.sets, costGrowth)
			}
			for _, count := range []struct {
				what         string
				small, large int
			}{
				{"chains", small.chains, large.chains}, {"rules", small.rules, large.rules},
				{"elements", small.elements, large.elements},
				{"messages", small.messages, large.messages}, {"bytes", small.bytes, large.bytes},
			} {
				if most := costGrowth*count.small + count.small/10 + usualChains; count.large > most { // names grow by a digit
					t.Errorf("%d %s and %d at %d times the size: that is not linear", count.small, count.what, count.large, costGrowth)
				}
			}
			if changes[0].messages != changes[1].messages || changes[0].elements != changes[1].elements {
				t.Errorf("a change costs %+v, and %+v at %d times the size", changes[0], changes[1], costGrowth)
			}
		})
	}
}

// TestCostModelInKernel: the kernel holds as many objects as the messages make.
func TestCostModelInKernel(t *testing.T) {
	for _, w := range costWorlds() {
		t.Run(w.name, func(t *testing.T) {
			lab.New(t)
			client := lab.Open(t, kernel.Open)
			r := NewRuleset(testConfig())
			r.Apply(w.world(w.size))
			batch := change.Diff(nil, r.Want())
			commit(t, client, batch)
			tables, _, err := client.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want, got := costOf(t, &batch), cost{}
			for _, table := range tables {
				got.sets += len(table.Sets)
				got.chains += len(table.Chains)
				for _, chain := range table.Chains {
					got.rules += len(chain.Rules)
				}
				for _, set := range table.Sets {
					got.elements += len(set.Map)
				}
			}
			want.messages, want.bytes = 0, 0
			if got != want {
				t.Errorf("the kernel has %+v, the messages make %+v", got, want)
			}
		})
	}
}

// TestCostOfAffinityChange: one endpoint of many is another, and what is done to members and to
// entries does not follow the number of those that stay. Allocations show it.
func TestCostOfAffinityChange(t *testing.T) {
	cost := func(endpoints int) float64 {
		var deltas []tracker.Delta
		for i := range 2 {
			p := clusterPort(0, endpoints)
			p.Affinity = time.Hour
			p.Cluster[endpoints-1] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, 0, 0, byte(i)}), 8080) // behind all others
			deltas = append(deltas, tracker.Delta{Changed: []*tracker.ServicePort{p}})
		}
		r := NewRuleset(testConfig())
		r.Apply(deltas[1])
		r.Committed()
		return testing.AllocsPerRun(10, func() {
			for _, delta := range deltas {
				r.Apply(delta)
				if batch := r.Changes(); batch.ElementCount() > 4 { // of the list and of the members
					t.Fatalf("%d endpoints: %d elements", endpoints, batch.ElementCount())
				}
				r.Committed()
			}
		})
	}
	if few, many := cost(50), cost(5000); many > 2*few {
		t.Errorf("a change costs %v allocations among 50 endpoints, %v among 5000", few, many)
	}
}

// BenchmarkWorlds measures, in each world of costWorlds: the start, which commits it to an empty kernel; its small
// change and the way back; and the change of a neighbour, an endpoint of a plain Service.
func BenchmarkWorlds(b *testing.B) {
	for _, w := range costWorlds() {
		b.Run(w.name, func(b *testing.B) {
			lab.New(b)
			client := lab.Open(b, kernel.Open)
			world := w.world(w.large)
			neighbour := clusterPort(1<<17, 3)
			world.Changed = append(world.Changed, neighbour)
			b.Run("start", func(b *testing.B) { benchmarkStart(b, client, world) })
			r := NewRuleset(testConfig())
			r.Apply(world)
			commit(b, client, change.Diff(nil, r.Want()))
			r.Committed()
			there := w.change(w.large)
			touched := make(map[tracker.PortID]bool)
			maps.Copy(touched, there.Removed)
			for _, p := range there.Changed {
				touched[p.ID] = true
			}
			back := tracker.Delta{Changed: slices.DeleteFunc(slices.Clone(world.Changed), func(p *tracker.ServicePort) bool {
				return !touched[p.ID]
			})}
			b.Run("change", func(b *testing.B) { benchmarkChanges(b, client, r, there, back) })
			other := *neighbour
			other.Lists = &tracker.Lists{Serving: neighbour.Serving,
				Cluster: append(other.Cluster[:2:2], netip.MustParseAddrPort("11.0.0.1:8080"))}
			b.Run("neighbour", func(b *testing.B) {
				benchmarkChanges(b, client, r,
					tracker.Delta{Changed: []*tracker.ServicePort{&other}},
					tracker.Delta{Changed: []*tracker.ServicePort{neighbour}})
			})
		})
	}
}

// benchmarkStart commits a world to an empty kernel. It also reports the least CPU time of all rounds.
func benchmarkStart(b *testing.B, client *kernel.Client, world tracker.Delta) {
	var used, least time.Duration
	for b.Loop() {
		used = cpuTime(b)
		r := NewRuleset(testConfig())
		r.Apply(world)
		batch := change.Diff(nil, r.Want())
		commit(b, client, batch)
		b.StopTimer()
		if used = cpuTime(b) - used; least == 0 || used < least {
			least = used
		}
		b.ReportMetric(float64(batch.ElementCount()), "elements")
		clearTables(b, client, r.Want())
		b.StartTimer()
	}
	b.ReportMetric(float64(least), "least-cpu-ns")
}

// benchmarkChanges commits two changes in turns. It also reports the least time of a commit.
func benchmarkChanges(b *testing.B, client *kernel.Client, r *Ruleset, there, back tracker.Delta) {
	least := time.Duration(0)
	for b.Loop() {
		for _, delta := range []tracker.Delta{there, back} {
			r.Apply(delta)
			batch := r.Changes()
			began := time.Now()
			commit(b, client, batch)
			if took := time.Since(began); least == 0 || took < least {
				least = took
			}
			r.Committed()
		}
	}
	b.ReportMetric(float64(least), "least-commit-ns")
}
