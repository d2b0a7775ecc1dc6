package migration

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
)

// A migrationNet is a node between clients and pods, each in a network namespace of their
// own: the kernel's own TCP on both ends, so that a reset or a lost packet shows.
type migrationNet struct{ client, pods *lab.Namespace }

// The addresses of the two links; the node's end is .1 and ::1, the other end .2 and ::2.
// Addresses of pods are routed to the pods' namespace, which owns all of them.
var migrationLinks = []struct{ name, v4, v6 string }{
	{"client", "192.168.7.", "fd00:7::"},
	{"pods", "192.168.8.", "fd00:8::"},
}

// migrationNode is the node's address on the client's link, and the one of its Node object.
func migrationNode(f nft.Family) netip.Addr {
	if f == nft.IP6 {
		return netip.MustParseAddr("fd00:7::1")
	}
	return netip.MustParseAddr("192.168.7.1")
}

// newMigrationNet makes the calling test the node of a new network.
func newMigrationNet(t *testing.T) *migrationNet {
	t.Helper()
	lab.New(t)
	err := lab.Forward()
	spaces := [2]*lab.Namespace{}
	for i, link := range migrationLinks {
		spaces[i] = lab.Open(t, lab.NewNamespace)
		gateways := [2]netip.Addr{netip.MustParseAddr(link.v4 + "1"), netip.MustParseAddr(link.v6 + "1")}
		err = errors.Join(err, lab.Connect(link.name, spaces[i], "node"), addAddresses(link.name, gateways),
			spaces[i].Do(func() error {
				return errors.Join(
					addAddresses("node", [2]netip.Addr{gateways[0].Next(), gateways[1].Next()}),
					lab.AddRoute("node", netip.MustParsePrefix("0.0.0.0/0"), gateways[0]),
					lab.AddRoute("node", netip.MustParsePrefix("::/0"), gateways[1]))
			}))
	}
	n := &migrationNet{client: spaces[0], pods: spaces[1]}
	err = errors.Join(err, n.pods.Do(func() error {
		return errors.Join(lab.AddLocal(podRanges[0]), lab.AddLocal(podRanges[1]))
	}),
		lab.AddRoute("pods", podRanges[0], netip.MustParseAddr("192.168.8.2")),
		lab.AddRoute("pods", podRanges[1], netip.MustParseAddr("fd00:8::2")))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// podRanges hold all pods.
var podRanges = [2]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/64")}

// addAddresses gives a device an address of each family, in a /24 and a /64.
func addAddresses(device string, addrs [2]netip.Addr) error {
	return errors.Join(lab.AddAddress(device, netip.PrefixFrom(addrs[0], 24)),
		lab.AddAddress(device, netip.PrefixFrom(addrs[1], 64)))
}

// serve starts the pods: they send back what they get, over TCP at every address and over
// UDP at those given.
func (n *migrationNet) serve(t *testing.T, udp []netip.Addr) {
	t.Helper()
	err := n.pods.Do(func() error {
		for network, address := range map[string]string{"tcp4": "0.0.0.0:8080", "tcp6": "[::]:8080"} {
			listener, err := net.Listen(network, address)
			if err != nil {
				return err
			}
			t.Cleanup(func() { listener.Close() })
			lab.Serve(listener, func(conn net.Conn) { io.Copy(conn, conn) })
		}
		for _, addr := range udp {
			if addr.Is6() { // IPv6 binds to nothing less
				if err := lab.AddAddress("lo", netip.PrefixFrom(addr, 128)); err != nil {
					return err
				}
			}
			conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 8080)))
			if err != nil {
				return err
			}
			t.Cleanup(func() { conn.Close() })
			go echoDatagrams(conn)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// echoDatagrams serves until the socket is closed.
func echoDatagrams(conn *net.UDPConn) {
	buf := make([]byte, 16)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if _, err := conn.WriteToUDPAddrPort(buf[:n], from); err != nil && os.IsPermission(err) {
			return
		}
	}
}
