package main

import (
	"encoding/binary"
	"errors"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A family is what the cluster has of IPv4 or of IPv6.
type family struct {
	name     corev1.IPFamily
	services netip.Prefix // cluster IPs
	pods     netip.Prefix // endpoints
	node     netip.Addr   // stays
	nodes    netip.Prefix // where node ports are reached
	external netip.Addr   // the first of the addresses that changing Services compete for
	outer    netip.Prefix // load balancers, and more addresses that Services ask for
	ranges   netip.Prefix // clients that source ranges are about; none of them is there
}

// families are the cluster's families. Both are alike: one number stands for an address in each.
var families = [...]family{
	{
		name:     corev1.IPv4Protocol,
		services: netip.MustParsePrefix("10.96.0.0/12"), pods: netip.MustParsePrefix("10.128.0.0/9"),
		node: netip.MustParseAddr("192.0.2.11"), nodes: netip.MustParsePrefix("192.0.2.0/24"),
		external: netip.MustParseAddr("198.51.100.0"), outer: netip.MustParsePrefix("198.18.0.0/15"),
		ranges: netip.MustParsePrefix("20.0.0.0/8"),
	},
	{
		name:     corev1.IPv6Protocol,
		services: netip.MustParsePrefix("fd00:10:96::/112"), pods: netip.MustParsePrefix("fd00:10:128::/64"),
		node: netip.MustParseAddr("2001:db8::11"), nodes: netip.MustParsePrefix("2001:db8::/64"),
		external: netip.MustParseAddr("2001:db8:51::"), outer: netip.MustParsePrefix("2001:db8:18::/96"),
		ranges: netip.MustParsePrefix("2001:db8:20::/96"),
	},
}

// low returns the last four bytes of an address.
func low(a netip.Addr) uint32 {
	b := a.AsSlice()
	return binary.BigEndian.Uint32(b[len(b)-4:])
}

// How the pods' addresses are shared out: perService to each changing Service, and as many
// from firstServers on to each of those that stay.
const (
	perService   = 256
	maxServices  = 2000
	firstServers = maxServices * perService
)

// podOf is address n of those that belong to changing Service i.
func (f *family) podOf(i, n int) netip.Addr { return lab.After(f.pods.Addr(), i*perService+n) }

// serverOf is server n of the i-th Service that stays.
func (f *family) serverOf(i, n int) netip.Addr {
	return lab.After(f.pods.Addr(), firstServers+i*perService+1+n)
}

// servedBy returns the name of the Service whose server a pod's address is; empty if there is
// none.
func servedBy(pod netip.Addr) string {
	for _, f := range families {
		if !f.pods.Contains(pod) {
			continue
		}
		i := int(low(pod)-low(f.pods.Addr())) / perService
		switch {
		case i < maxServices:
			return serviceName(i)
		case i < maxServices+len(stays):
			return stays[i-maxServices].name
		}
	}
	return ""
}

// Addresses of f.outer by number: those of the Services that stay, one that Services claim by the
// hundred, one of each changing Service, and a pool of which changing Services ask for many.
const (
	balancerAddress  = 16 // plus the number of the Service that stays
	contestedAddress = 32
	affineAddresses  = 256
	ownAddresses     = 4096
	pooledAddresses  = 16384
	pool             = 400
)

func (f *family) outerIP(n int) netip.Addr { return lab.After(f.outer.Addr(), n) }

// clientOf is the address of client n, which no other client has: a pod that serves nothing.
func (f *family) clientOf(n int) netip.Addr {
	return lab.After(f.pods.Addr(), firstServers+len(stays)*perService+1+n)
}

// clusterIP is the cluster IP of changing Service i.
func (f *family) clusterIP(i int) netip.Addr { return lab.After(f.services.Addr(), 1024+i) }

// stayingIP is the cluster IP of the i-th Service that stays.
func (f *family) stayingIP(i int) netip.Addr { return lab.After(f.services.Addr(), 10+i) }

// outside is the device that packets leave by; it swallows them.
const outside = "outside"

// setUpNode makes this network namespace a node whose pods are addresses of its own.
func setUpNode() error {
	err := errors.Join(
		lab.SetUp("lo"),
		lab.AddSink(outside),
		lab.Forward(),
		lab.SetSysctl("net.ipv6.ip_nonlocal_bind", "1"), // IPv6 does not count a local route as an address
	)
	for _, f := range families {
		err = errors.Join(err,
			lab.AddAddress(outside, netip.PrefixFrom(f.node, f.node.BitLen())),
			lab.AddLocal(f.pods),
			lab.AddRoute(outside, f.services, netip.Addr{}),
			lab.AddRoute(outside, f.outer, netip.Addr{}))
	}
	return err
}

// visiting are how many addresses of each family the node may get besides its own.
const visiting = 8

// visit gives the node visiting address i or takes it away. IPv6 would prefer another address
// as the source of connections, which have to end when this one goes.
func (f *family) visit(i int, present bool) error {
	visitor := netip.PrefixFrom(lab.After(f.node, 100+i), f.node.BitLen())
	if present {
		return lab.AddDeprecated(outside, visitor)
	}
	return lab.RemoveAddress(outside, visitor)
}
