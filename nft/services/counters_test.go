package services

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// countingPort is a Service port whose endpoints are loopback addresses, so that the rules
// count a packet that this machine sends to its cluster IP, and no program answers it.
func countingPort(endpoints ...string) *tracker.ServicePort {
	p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{
		ID:  tracker.PortID{Namespace: "shop", Service: "web", Port: "http", Protocol: tracker.UDP, Family: tracker.IPv4},
		UID: "1", Port: 80, ClusterIP: netip.MustParseAddr("127.96.0.1"),
	},
		Lists: new(tracker.Lists), HasEndpoints: len(endpoints) > 0,
	}
	for _, ep := range endpoints {
		p.Cluster = append(p.Cluster, netip.MustParseAddrPort(ep))
	}
	p.Serving = p.Cluster
	return p
}

// A counted is a kernel that counts, in a namespace of its own.
type counted struct {
	*testing.T
	client  *kernel.Client
	ruleset *Ruleset
	port    int // source port of the latest connection
}

func newCounted(t *testing.T) *counted {
	lab.New(t)
	config := testConfig()
	config.Counters, config.EndpointCounters = true, true
	// nothing to masquerade with
	config.Pods = map[nft.Family]layout.PodMatch{nft.IP: {CIDR: netip.MustParsePrefix("127.0.0.0/8")}}
	c := &counted{T: t, client: lab.Open(t, kernel.Open), ruleset: NewRuleset(config), port: 20000}
	commit(t, c.client, change.Diff(nft.Tables{}, c.ruleset.Want()))
	c.ruleset.Committed()
	return c
}

func (c *counted) set(p *tracker.ServicePort) {
	c.Helper()
	c.ruleset.Apply(tracker.Delta{Changed: []*tracker.ServicePort{p}})
	commit(c, c.client, c.ruleset.Changes())
	c.ruleset.Committed()
}

// connect makes n connections: each has a source port of its own.
func (c *counted) connect(n int) {
	c.Helper()
	for range n {
		c.port++ // the kernel may give out one port twice, and that is no new connection
		dialer := net.Dialer{Timeout: time.Second, LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: c.port}}
		conn, err := dialer.Dial("udp", "127.96.0.1:80")
		if err != nil {
			c.Fatal(err)
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			c.Fatal(err)
		}
		conn.Close()
	}
}

// want holds the counts of the frontend and the sum of those of its endpoints.
func (c *counted) want(n uint64) {
	c.Helper()
	frontends, err := readback.ReadConnections(c.Context(), c.client, nft.IP, false)
	if err != nil {
		c.Fatal(err)
	}
	endpoints, err := readback.ReadConnections(c.Context(), c.client, nft.IP, true)
	if err != nil {
		c.Fatal(err)
	}
	var sum uint64
	for _, e := range endpoints {
		sum += e.Count
	}
	name := layout.PortName{Namespace: "shop", Name: "web", Port: "http"}
	if len(frontends) != 1 || frontends[0].Count != n || frontends[0].Name != name || sum != n {
		c.Errorf("got %+v and %+v, want %d connections of %s", frontends, endpoints, n, name)
	}
}

func (c *counted) of(endpoint string) uint64 {
	c.Helper()
	endpoints, err := readback.ReadConnections(c.Context(), c.client, nft.IP, true)
	if err != nil {
		c.Fatal(err)
	}
	i := slices.IndexFunc(endpoints, func(e readback.Connections) bool { return e.Endpoint.String() == endpoint })
	if i < 0 {
		c.Fatalf("no %s in %+v", endpoint, endpoints)
	}
	return endpoints[i].Count
}

// TestCountersOfUnchangedElements: the kernel goes on counting where an element stays, over changes of
// the Service and a restart. An element that is replaced begins at zero.
func TestCountersOfUnchangedElements(t *testing.T) {
	c := newCounted(t)
	c.set(countingPort("127.0.1.1:8080", "127.0.1.2:8080"))
	c.connect(40)
	c.want(40)
	second := c.of("127.0.1.2:8080")
	c.set(countingPort("127.0.1.1:8080", "127.0.1.2:8080", "127.0.1.3:8080"))
	if got := c.of("127.0.1.2:8080"); got != second || second == 0 {
		t.Errorf("an endpoint that stays has %d connections, had %d", got, second)
	}
	c.set(countingPort("127.0.1.2:8080", "127.0.1.3:8080")) // the third moves into the hole
	if got := c.of("127.0.1.3:8080"); got != 0 {
		t.Errorf("the endpoint whose element was replaced has %d connections, want 0", got)
	}
	again := NewRuleset(c.ruleset.config)
	have, _, err := c.client.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again.Adopt(have)
	again.Apply(tracker.Delta{Changed: []*tracker.ServicePort{countingPort("127.0.1.2:8080", "127.0.1.3:8080")}})
	if batch := change.Diff(have, again.Want()); !batch.Empty() {
		t.Errorf("a restart writes %s", batch.Ops[0].Text())
	}
}

// TestCountersOfJointLists: the count of an endpoint in a long list names the port of the Service, unless several ports
// share the list.
func TestCountersOfJointLists(t *testing.T) {
	defer func(places int) { manyPlaces = places }(manyPlaces)
	manyPlaces = 2
	c := newCounted(t)
	first := countingPort("127.0.1.1:0", "127.0.1.2:0")
	first.TargetPort = 8080
	c.set(first)
	c.connect(40)
	c.want(40)
	of := func() readback.Connections {
		t.Helper()
		endpoints, err := readback.ReadConnections(t.Context(), c.client, nft.IP, true)
		if err != nil || len(endpoints) != 2 || endpoints[0].Count == 0 {
			t.Fatalf("%+v, %v", endpoints, err)
		}
		return endpoints[0]
	}
	if got := of(); got.Endpoint.String() != "127.0.1.1:8080" || got.Name.String() != "shop/web:http" {
		t.Errorf("with one port: %+v", got)
	}
	second := first.With(func(spec *tracker.PortSpec) { spec.ID.Port, spec.Port = "https", 443 })
	c.set(second)
	if got := of(); got.Endpoint.String() != "127.0.1.1:0" || got.Name.String() != "shop/web" {
		t.Errorf("with two ports: %+v", got)
	}
}

// TestCountersOfAnotherService: who takes over a frontend does not take over its count.
func TestCountersOfAnotherService(t *testing.T) {
	c := newCounted(t)
	p := countingPort("127.0.1.1:8080")
	c.set(p)
	c.connect(3)
	other := countingPort("127.0.1.1:8080", "127.0.1.2:8080")
	other.ID.Service = "new"
	c.ruleset.Apply(tracker.Delta{
		Changed: []*tracker.ServicePort{other},
		Removed: map[tracker.PortID]bool{p.ID: true},
	})
	commit(t, c.client, c.ruleset.Changes())
	frontends, err := readback.ReadConnections(t.Context(), c.client, nft.IP, false)
	if err != nil || len(frontends) != 1 || frontends[0].Count != 0 || frontends[0].Name.Name != "new" {
		t.Errorf("got %+v, %v; want no connection of shop/new", frontends, err)
	}
}

// TestConnectionsWithoutCounters: a table that does not count has no counts, and no table
// neither.
func TestConnectionsWithoutCounters(t *testing.T) {
	lab.New(t)
	k, r := lab.Open(t, kernel.Open), NewRuleset(testConfig())
	check := func() {
		for _, endpoints := range []bool{false, true} {
			if got, err := readback.ReadConnections(t.Context(), k, nft.IP, endpoints); err != nil || len(got) != 0 {
				t.Errorf("got %v, %v", got, err)
			}
		}
	}
	check()
	r.Apply(cluster(3, 2))
	commit(t, k, change.Diff(nft.Tables{}, r.Want()))
	check()
}
