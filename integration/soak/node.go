package main

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// outside is the device that packets leave by; it swallows them.
const outside = "outside"

// setUpNode makes this network namespace a node whose pods are addresses of its own.
func setUpNode() error {
	// A device of this kind drops what is not redirected to it.
	device := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: outside, TxQLen: -1}}
	if err := netlink.LinkAdd(device); err != nil {
		return err
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	err = errors.Join(
		netlink.LinkSetUp(loopback),
		netlink.LinkSetUp(device),
		setSysctl("net/ipv4/ip_forward"),
		setSysctl("net/ipv6/conf/all/forwarding"),
		setSysctl("net/ipv6/ip_nonlocal_bind"), // IPv6 does not count a local route as an address
	)
	for _, f := range families {
		err = errors.Join(err,
			setAddress(f.node, true),
			netlink.RouteAdd(&netlink.Route{
				LinkIndex: loopback.Attrs().Index, Dst: network(f.pods), Type: unix.RTN_LOCAL,
				Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
			}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: device.Index, Dst: network(f.services), Scope: netlink.SCOPE_LINK}))
	}
	return err
}

// setSysctl switches on a kernel parameter of this network namespace.
func setSysctl(name string) error {
	return os.WriteFile(filepath.Join("/proc/sys", name), []byte("1"), 0)
}

// setAddress gives the node an address that stays, or takes it away.
func setAddress(addr netip.Addr, present bool) error {
	return changeAddress(&netlink.Addr{IPNet: network(netip.PrefixFrom(addr, addr.BitLen()))}, present)
}

// setVisitor gives the node an address that does not stay, or takes it away. It is a
// deprecated one: IPv6 would prefer it as the source address of connections, which have to
// end when it goes.
func setVisitor(addr netip.Addr, present bool) error {
	const forever = 1<<32 - 1
	return changeAddress(&netlink.Addr{IPNet: network(netip.PrefixFrom(addr, addr.BitLen())), ValidLft: forever}, present)
}

func changeAddress(address *netlink.Addr, present bool) error {
	link, err := netlink.LinkByName(outside)
	if err != nil {
		return err
	}
	if !present {
		return netlink.AddrDel(link, address)
	}
	address.Flags = unix.IFA_F_NODAD
	return netlink.AddrReplace(link, address)
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
