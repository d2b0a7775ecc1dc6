package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// uplink is the name of the one device that a host other than the node has.
const uplink = "eth0"

// A network is a node with pods, each behind a link of its own and routed, and a client
// on the network that the node's uplink is on.
//
//	client 192.168.0.100 -- 192.168.0.2 node 10.244.0.1 -+- 10.244.0.11 web-1
//	                                                     +- 10.244.0.12 web-2
//	                                                     ...
type network struct {
	node, client *host
	pods         map[string]*host
}

// podAddresses returns the addresses of a pod by the last number that both share.
func podAddresses(number string) [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr("10.244.0." + number), netip.MustParseAddr("fd00:10:244::" + number)}
}

// newNetwork makes the hosts and connects them. The addresses are those of the example
// manifests.
func newNetwork() (n *network, err error) {
	n = &network{pods: make(map[string]*host)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.node, err = newHost("node-a"); err != nil {
		return n, err
	}
	if err := n.node.forward(); err != nil {
		return n, err
	}
	if n.client, err = newHost("client"); err != nil {
		return n, err
	}
	if err := n.joinClient(); err != nil {
		return n, fmt.Errorf("connect client: %w", err)
	}
	for _, pod := range [][2]string{{"web-1", "11"}, {"web-2", "12"}, {"web-3", "13"}, {"web-4", "14"}, {"shell", "20"}} {
		if err := n.addPod(pod[0], podAddresses(pod[1])); err != nil {
			return n, fmt.Errorf("connect pod %s: %w", pod[0], err)
		}
	}
	return n, nil
}

func (n *network) joinClient() error {
	return errors.Join(
		n.node.connect("uplink", n.client),
		n.node.addAddress("uplink", "192.168.0.2/24"),
		n.node.addAddress("uplink", "fd00:192:168::2/64"),
		n.client.addAddress(uplink, "192.168.0.100/24"),
		n.client.addAddress(uplink, "fd00:192:168::100/64"),
	)
}

// addPod makes a pod that knows nothing but its gateway, the node.
func (n *network) addPod(name string, addrs [2]netip.Addr) (err error) {
	pod, err := newHost(name)
	if err != nil {
		return err
	}
	n.pods[name] = pod
	if err := n.node.connect("to-"+name, pod); err != nil {
		return err
	}
	for i, gateway := range podAddresses("1") {
		only := netip.PrefixFrom(addrs[i], addrs[i].BitLen())
		way := netip.PrefixFrom(gateway, gateway.BitLen())
		err = errors.Join(err,
			n.node.addAddress("to-"+name, way.String()),
			n.node.addRoute("to-"+name, only, netip.Addr{}),
			pod.addAddress(uplink, only.String()),
			pod.addRoute(uplink, way, netip.Addr{}),
			pod.addRoute(uplink, netip.PrefixFrom(gateway, 0).Masked(), gateway),
		)
	}
	return err
}

// close lets all namespaces go.
func (n *network) close() (err error) {
	hosts := []*host{n.node, n.client}
	for _, pod := range n.pods {
		hosts = append(hosts, pod)
	}
	for _, h := range hosts {
		if h != nil {
			err = errors.Join(err, h.close())
		}
	}
	return err
}

// connect makes a pair of devices, one end here and the uplink of peer.
func (h *host) connect(device string, peer *host) error {
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: device, TxQLen: -1})
	veth.PeerName, veth.PeerNamespace = uplink, netlink.NsFd(peer.netns.Fd())
	if err := h.links.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth %s: %w", device, err)
	}
	return errors.Join(h.up(device), peer.up(uplink))
}

func (h *host) up(device string) error {
	link, err := h.links.LinkByName(device)
	if err != nil {
		return err
	}
	return h.links.LinkSetUp(link)
}

// addAddress gives a device an address with its prefix length.
func (h *host) addAddress(device, addr string) error {
	link, err := h.links.LinkByName(device)
	if err != nil {
		return err
	}
	parsed, err := netlink.ParseAddr(addr)
	if err != nil {
		return err
	}
	parsed.Flags = unix.IFA_F_NODAD
	if err := h.links.AddrAdd(link, parsed); err != nil {
		return fmt.Errorf("%s: add address %s to %s: %w", h.name, addr, device, err)
	}
	return nil
}

// addRoute sends what is addressed to a prefix to a device, or by way of a gateway there.
func (h *host) addRoute(device string, to netip.Prefix, gateway netip.Addr) error {
	link, err := h.links.LinkByName(device)
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Gw: gateway.AsSlice()}
	if !gateway.IsValid() {
		route.Scope = netlink.SCOPE_LINK
	}
	if err := h.links.RouteAdd(route); err != nil {
		return fmt.Errorf("%s: add route to %s: %w", h.name, to, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
