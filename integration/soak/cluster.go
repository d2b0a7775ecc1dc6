package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
)

const namespace = "soak"

// A staying is a Service that is always there.
type staying struct {
	name     string
	nodePort int32
}

// stays are the Services of the clients: steady has all its servers as endpoints, rolling a
// few of them, which change. The others are what a tenant may do to all others: see hostile.go.
var stays = [...]staying{
	{name: "steady", nodePort: 32501}, {name: "rolling", nodePort: 32502}, {name: "affine", nodePort: 32503},
	{name: "restricted", nodePort: 32504}, {name: "contested", nodePort: 32505}, {name: "moving", nodePort: 32506},
}

// Numbers in stays.
const (
	_ = iota // steady
	rolling
	affine
	restricted
	contested
	moving
)

const servers = 8 // of each Service that stays, in each family

// A cluster is the content of the API server: Services that change at random, and the Services of
// the clients.
type cluster struct {
	server   *apiserver.Server
	ledger   *ledger
	random   *rand.Rand
	services int
	skew     time.Duration // of the control plane's clock
	changes  int           // so far
	jumps    int           // of its clock
	crowded  bool          // the Services that come and go at a time are there
}

// newCluster fills a server.
func newCluster(server *apiserver.Server, random *rand.Rand, services int) *cluster {
	c := &cluster{server: server, ledger: newLedger(), random: random, services: services}
	server.Apply(lab.Node(lab.NodeName, families[0].node, families[1].node))
	for i := range services {
		server.Apply(c.randomService(i))
		c.randomSlice(i, 0, 0)
		c.randomSlice(i, 1, 0)
	}
	for i := range stays {
		server.Apply(c.stayingService(i))
		for f := range families {
			c.fill(i, f, 0, servers)
		}
	}
	c.roll()
	return c
}

// stayingService returns some value of the i-th Service that stays.
func (c *cluster) stayingService(i int) *corev1.Service {
	service := newService(stays[i].name, func(f *family) netip.Addr { return f.stayingIP(i) })
	service.Spec.Type = corev1.ServiceTypeNodePort
	for p := range service.Spec.Ports {
		service.Spec.Ports[p].NodePort = stays[i].nodePort
	}
	switch i {
	case affine:
		c.makeAffineEverywhere(service)
	case restricted:
		c.makeRestricted(service)
	case contested:
		makeBalanced(service, contestedAddress)
	}
	return service
}

func serviceName(i int) string { return fmt.Sprintf("service-%d", i) }

// newService returns a Service of both families with a port for TCP and one for UDP.
func newService(name string, ip func(*family) netip.Addr) *corev1.Service {
	s := lab.Service(namespace, name, ip(&families[0]), ip(&families[1]))
	s.Spec.Ports = []corev1.ServicePort{
		{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: lab.ServicePort},
		{Name: "udp", Protocol: corev1.ProtocolUDP, Port: lab.ServicePort},
	}
	return s
}

// newSlice returns slice number part of a Service in a family.
func (c *cluster) newSlice(service string, f, part int, addrs []netip.Addr) *discoveryv1.EndpointSlice {
	s := lab.Slice(namespace, service, part, families[f].name, addrs)
	s.Name = sliceName(service, f, part)
	s.Annotations = map[string]string{
		corev1.EndpointsLastChangeTriggerTime: time.Now().Add(c.skew).Format(time.RFC3339Nano),
	}
	s.Ports = []discoveryv1.EndpointPort{
		{Name: new("tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(lab.EndpointPort))},
		{Name: new("udp"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(lab.EndpointPort))},
	}
	return s
}

func sliceName(service string, f, part int) string {
	return fmt.Sprintf("%s-%d-%d", service, f, part)
}

// randomService returns some value of the changing Service i. Its external IPs may be claimed
// by others, too.
func (c *cluster) randomService(i int) *corev1.Service {
	s := newService(serviceName(i), func(f *family) netip.Addr { return f.clusterIP(i) })
	s.Spec.Ports = s.Spec.Ports[c.random.IntN(2):]
	switch c.random.IntN(10) {
	case 0:
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = int32(30000 + i)
	case 1:
		c.makeAffine(s, 1)
	case 2:
		for _, f := range families {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, lab.After(f.external, c.random.IntN(8)).String())
		}
	case 3:
		local := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &local
	case 4, 5, 6, 7:
		c.makeHostile(i, s)
	}
	return s
}

// randomSlice gives a slice of the changing Service i up to ten endpoints, some of which are
// on this node, not ready or terminating.
func (c *cluster) randomSlice(i, f, part int) {
	var addrs []netip.Addr
	for range c.random.IntN(11) {
		addrs = append(addrs, families[f].podOf(i, 1+c.random.IntN(perService-1)))
	}
	slice := c.newSlice(serviceName(i), f, part, addrs)
	for e := range slice.Endpoints {
		endpoint := &slice.Endpoints[e]
		switch c.random.IntN(5) {
		case 0:
			endpoint.NodeName = new(lab.NodeName)
		case 1:
			endpoint.Conditions.Ready = new(false)
		case 2:
			endpoint.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
		}
	}
	c.ledger.set(serviceName(i), slice.Name, addrs)
	c.server.Apply(slice)
}

// How often something changes, and how many changes there are between two jumps of the clock.
const (
	changeEvery = 20 * time.Millisecond
	jumpAfter   = 250
)

// run changes something again and again until ctx ends.
func (c *cluster) run(ctx context.Context) {
	tick := time.NewTicker(changeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.change()
			c.changeHostile()
			if c.changes%jumpAfter == 0 {
				c.jump()
			}
		}
	}
}

// change changes something at random.
func (c *cluster) change() {
	c.changes++
	i, f, part := c.random.IntN(c.services), c.random.IntN(len(families)), c.random.IntN(2)
	switch c.random.IntN(8) {
	case 0:
		c.server.Delete("Service", namespace, serviceName(i))
	case 1, 2:
		c.server.Apply(c.randomService(i))
	case 3:
		name := sliceName(serviceName(i), f, part)
		c.ledger.set(serviceName(i), name, nil)
		c.server.Delete("EndpointSlice", namespace, name)
	case 4:
		c.roll()
	default:
		c.randomSlice(i, f, part)
	}
}

// roll gives Service rolling other endpoints, one to three of its servers.
func (c *cluster) roll() {
	for f := range families {
		c.fill(rolling, f, c.random.IntN(servers), 1+c.random.IntN(3))
	}
}

// fill makes n servers, from the given one on, the endpoints of the i-th Service that stays.
func (c *cluster) fill(i, f, first, n int) {
	var addrs []netip.Addr
	for k := range n {
		addrs = append(addrs, families[f].serverOf(i, (first+k)%servers))
	}
	slice := c.newSlice(stays[i].name, f, 0, addrs)
	c.ledger.set(stays[i].name, slice.Name, addrs)
	c.server.Apply(slice)
}

// farthest is how far the control plane's clock may be off.
const farthest = 30 * 24 * time.Hour

// jump sets the control plane's clock.
func (c *cluster) jump() {
	c.jumps++
	c.skew = time.Duration(c.random.Int64N(int64(2*farthest))) - farthest
}
