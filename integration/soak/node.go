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

// The addresses of the cluster. Endpoints that answer have those from firstServer on.
var (
	serviceCIDR = netip.MustParsePrefix("10.96.0.0/12")
	podCIDR     = netip.MustParsePrefix("10.128.0.0/9")
	firstServer = netip.MustParseAddr("10.128.255.1")
	nodeAddress = netip.MustParseAddr("192.0.2.11")
	nodeNetwork = netip.MustParsePrefix("192.0.2.0/24")
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
	return errors.Join(
		netlink.LinkSetUp(loopback),
		netlink.LinkSetUp(device),
		setAddress(nodeAddress, true),
		netlink.RouteAdd(&netlink.Route{
			LinkIndex: loopback.Attrs().Index, Dst: network(podCIDR), Type: unix.RTN_LOCAL,
			Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
		}),
		netlink.RouteAdd(&netlink.Route{LinkIndex: device.Index, Dst: network(serviceCIDR), Scope: netlink.SCOPE_LINK}),
		os.WriteFile(filepath.Join("/proc/sys/net/ipv4", "ip_forward"), []byte("1"), 0),
	)
}

// setAddress gives the node an address, or takes it away.
func setAddress(addr netip.Addr, present bool) error {
	link, err := netlink.LinkByName(outside)
	if err != nil {
		return err
	}
	address := &netlink.Addr{IPNet: network(netip.PrefixFrom(addr, addr.BitLen()))}
	if present {
		return netlink.AddrReplace(link, address)
	}
	return netlink.AddrDel(link, address)
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
