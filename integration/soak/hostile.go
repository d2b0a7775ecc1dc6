package main

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// What a tenant may do to all others. Services that change do some of it at random; of those that
// stay, affine has session affinity over many frontends, endpoints that come and go and timeouts
// that change; restricted has hundreds of source ranges that change; contested has an address that
// many others claim; the endpoint of moving is another one fifty times a second. Once in a while a
// hundred Services come or go at a time.

// How many changes there are between two of a kind.
const (
	affineEvery     = 20
	restrictedEvery = 30
	crowdEvery      = 100
)

// crowdServices come and go at a time. They are the last that have numbers.
const (
	crowdServices = 100
	firstOfCrowd  = maxServices - crowdServices
)

// changeHostile changes what is due.
func (c *cluster) changeHostile() {
	for f := range families {
		c.fill(moving, f, c.random.IntN(servers), 1)
	}
	if c.changes%affineEvery == 0 {
		c.server.Apply(c.stayingService(affine))
		for f := range families {
			c.fill(affine, f, c.random.IntN(servers), 3+c.random.IntN(servers-3))
		}
	}
	if c.changes%restrictedEvery == 0 {
		c.server.Apply(c.stayingService(restricted))
	}
	if c.changes%crowdEvery == 0 {
		c.crowd()
	}
}

// crowd adds a hundred Services, or deletes them.
func (c *cluster) crowd() {
	c.crowded = !c.crowded
	for i := firstOfCrowd; i < maxServices; i++ {
		for f := range families {
			if c.crowded {
				c.randomSlice(i, f, 0)
				continue
			}
			name := sliceName(serviceName(i), f, 0)
			c.ledger.set(serviceName(i), name, nil)
			c.server.Delete("EndpointSlice", namespace, name)
		}
		if c.crowded {
			c.server.Apply(c.randomService(i))
		} else {
			c.server.Delete("Service", namespace, serviceName(i))
		}
	}
}

// fewExternals is how many external IPs a Service may have so that its endpoint lists are not shared.
const fewExternals = 12

// unshare takes away what Services have too much of for direct lists. Shared lists stay until they
// would be half as long as it takes to make them, so that what is there depends on what was.
func (c *cluster) unshare() {
	for i := range maxServices {
		if i < c.services || c.crowded && i >= firstOfCrowd {
			s := c.randomService(i)
			s.Spec.ExternalIPs = s.Spec.ExternalIPs[:min(len(s.Spec.ExternalIPs), fewExternals)]
			c.server.Apply(s)
		}
	}
}

// makeHostile makes changing Service i a burden for others.
func (c *cluster) makeHostile(i int, s *corev1.Service) {
	switch c.random.IntN(4) {
	case 0: // session affinity over many frontends
		c.makeAffine(s, 1)
		makeBalanced(s, ownAddresses+i)
		s.Spec.Ports[0].NodePort = int32(30000 + i)
		c.addExternals(s, pooledAddresses, pool, c.random.IntN(12))
	case 1: // source ranges
		makeBalanced(s, ownAddresses+i)
		c.addRanges(s, 1+c.random.IntN(400))
	case 2: // the address of another Service, from an earlier or later time than that one
		s.CreationTimestamp.Time = s.CreationTimestamp.Add(time.Duration(c.random.IntN(3)-1) * time.Hour)
		c.addExternals(s, contestedAddress, 1, 1)
	case 3: // many addresses, of which others want some
		c.addExternals(s, pooledAddresses, pool, 1+c.random.IntN(pool/2))
	}
}

// makeAffine gives a Service session affinity, for at least so many seconds.
func (c *cluster) makeAffine(s *corev1.Service, least int) {
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
		ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(least + c.random.IntN(3600)))},
	}
}

// makeBalanced gives a Service an address of a load balancer in each family.
func makeBalanced(s *corev1.Service, number int) {
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	for f := range families {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: families[f].outerIP(number).String()})
	}
}

// addExternals gives a Service n external IPs in each family, from so many after the first.
func (c *cluster) addExternals(s *corev1.Service, first, from, n int) {
	for f := range families {
		for _, k := range c.random.Perm(from)[:n] {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, families[f].outerIP(first+k).String())
		}
	}
}

// addRanges lets n ranges of some lengths in, in each family.
func (c *cluster) addRanges(s *corev1.Service, n int) {
	for f := range families {
		for range n {
			addr := lab.After(families[f].ranges.Addr(), c.random.IntN(1<<24))
			r := netip.PrefixFrom(addr, addr.BitLen()-c.random.IntN(12)).Masked()
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, r.String())
		}
	}
}

// affineExternals are the external IPs in each family that Service affine has at any time;
// clients must not forget an endpoint after a minute.
const (
	affineExternals = 12
	affineLeast     = 600
)

func (c *cluster) makeAffineEverywhere(s *corev1.Service) {
	c.makeAffine(s, affineLeast)
	makeBalanced(s, balancerAddress+affine)
	for f := range families {
		for k := range affineExternals + c.random.IntN(30) {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, families[f].outerIP(affineAddresses+k).String())
		}
	}
}

// makeRestricted lets the node in, and clients in some ranges.
func (c *cluster) makeRestricted(s *corev1.Service) {
	makeBalanced(s, balancerAddress+restricted)
	c.addRanges(s, 100+c.random.IntN(300))
	for f := range families {
		s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges,
			netip.PrefixFrom(families[f].node, families[f].node.BitLen()-c.random.IntN(4)).Masked().String())
	}
}
