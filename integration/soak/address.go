package main

import (
	"encoding/binary"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// A family is what the cluster has of IPv4 or of IPv6.
type family struct {
	name        corev1.IPFamily
	addressType discoveryv1.AddressType
	services    netip.Prefix // cluster IPs
	pods        netip.Prefix // endpoints
	node        netip.Addr   // stays
	nodes       netip.Prefix // where node ports are reached
	external    netip.Addr   // the first of those that changing Services quarrel about
}

// families are those of the cluster. Both are alike, so that one number stands for an
// address in each.
var families = [...]family{
	{
		name: corev1.IPv4Protocol, addressType: discoveryv1.AddressTypeIPv4,
		services: netip.MustParsePrefix("10.96.0.0/12"), pods: netip.MustParsePrefix("10.128.0.0/9"),
		node: netip.MustParseAddr("192.0.2.11"), nodes: netip.MustParsePrefix("192.0.2.0/24"),
		external: netip.MustParseAddr("198.51.100.0"),
	},
	{
		name: corev1.IPv6Protocol, addressType: discoveryv1.AddressTypeIPv6,
		services: netip.MustParsePrefix("fd00:10:96::/112"), pods: netip.MustParsePrefix("fd00:10:128::/64"),
		node: netip.MustParseAddr("2001:db8::11"), nodes: netip.MustParsePrefix("2001:db8::/64"),
		external: netip.MustParseAddr("2001:db8:51::"),
	},
}

// low returns the last four bytes of an address.
func low(a netip.Addr) uint32 {
	b := a.AsSlice()
	return binary.BigEndian.Uint32(b[len(b)-4:])
}

// after returns the address that comes n after a, counted in the last four bytes.
func after(a netip.Addr, n int) netip.Addr {
	b := a.AsSlice()
	binary.BigEndian.PutUint32(b[len(b)-4:], low(a)+uint32(n))
	next, _ := netip.AddrFromSlice(b) // as long as a
	return next
}

// How the pods' addresses are shared out: perService to each changing Service, and as many
// from firstServers on to each of those that stay.
const (
	perService   = 256
	maxServices  = 2000
	firstServers = maxServices * perService
)

// podOf is address n of those that belong to changing Service i.
func (f *family) podOf(i, n int) netip.Addr { return after(f.pods.Addr(), i*perService+n) }

// serverOf is server n of the i-th Service that stays.
func (f *family) serverOf(i, n int) netip.Addr {
	return after(f.pods.Addr(), firstServers+i*perService+1+n)
}

// ownerOf returns the name of the Service that a pod's address belongs to; empty if there is
// none.
func ownerOf(pod netip.Addr) string {
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

// clusterIP is that of changing Service i.
func (f *family) clusterIP(i int) netip.Addr { return after(f.services.Addr(), 1024+i) }

// stayingIP is the cluster IP of the i-th Service that stays.
func (f *family) stayingIP(i int) netip.Addr { return after(f.services.Addr(), 10+i) }
