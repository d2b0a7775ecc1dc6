package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/kube-nft/kube-nft/integration/lab"
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

// A host is the node, a pod or the client.
type host struct {
	name string
	*lab.Namespace
}

// newHost returns a host whose IPv6 works at once: no other host can have its addresses.
func newHost(name string) (*host, error) {
	space, err := lab.NewNamespace()
	if err != nil {
		return nil, fmt.Errorf("network namespace of %s: %w", name, err)
	}
	return &host{name, space}, space.Do(func() error {
		return errors.Join(
			lab.SetSysctl("net.ipv6.conf.all.disable_ipv6", "0"),
			lab.SetSysctl("net.ipv6.conf.default.disable_ipv6", "0"),
			lab.SetSysctl("net.ipv6.conf.all.accept_dad", "0"),
			lab.SetSysctl("net.ipv6.conf.default.accept_dad", "0"),
		)
	})
}

// podAddresses returns the addresses of a pod by the last number that both share.
func podAddresses(number string) [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr("10.244.0." + number), netip.MustParseAddr("fd00:10:244::" + number)}
}

// newNetwork makes the hosts and connects them, with the addresses of the example manifests.
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
	if err := n.node.Do(lab.Forward); err != nil {
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
		n.node.Do(func() error {
			return errors.Join(
				lab.Connect("uplink", n.client.Namespace, uplink),
				lab.AddAddress("uplink", netip.MustParsePrefix("192.168.0.2/24")),
				lab.AddAddress("uplink", netip.MustParsePrefix("fd00:192:168::2/64")))
		}),
		n.client.Do(func() error {
			return errors.Join(
				lab.AddAddress(uplink, netip.MustParsePrefix("192.168.0.100/24")),
				lab.AddAddress(uplink, netip.MustParsePrefix("fd00:192:168::100/64")))
		}))
}

// addPod makes a pod that knows nothing but its gateway, the node.
func (n *network) addPod(name string, addrs [2]netip.Addr) (err error) {
	pod, err := newHost(name)
	if err != nil {
		return err
	}
	n.pods[name] = pod
	err = n.node.Do(func() error { return lab.Connect("to-"+name, pod.Namespace, uplink) })
	for i, gateway := range podAddresses("1") {
		only := netip.PrefixFrom(addrs[i], addrs[i].BitLen())
		way := netip.PrefixFrom(gateway, gateway.BitLen())
		err = errors.Join(err,
			n.node.Do(func() error {
				return errors.Join(lab.AddAddress("to-"+name, way), lab.AddRoute("to-"+name, only, netip.Addr{}))
			}),
			pod.Do(func() error {
				return errors.Join(
					lab.AddAddress(uplink, only),
					lab.AddRoute(uplink, way, netip.Addr{}),
					lab.AddRoute(uplink, netip.PrefixFrom(gateway, 0).Masked(), gateway))
			}))
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
			err = errors.Join(err, h.Close())
		}
	}
	return err
}
