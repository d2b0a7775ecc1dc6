package integration

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/netns"
	"github.com/kube-nft/kube-nft/nft"
)

// A migrationNet is a node between clients and pods, each in a network namespace of their
// own: the kernel's own TCP on both ends, so that a reset or a lost packet shows.
type migrationNet struct {
	client, pods int // descriptors of namespaces
}

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
	netns.New(t)
	for _, name := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		netns.Sysctl(t, name, "1")
	}
	n := &migrationNet{client: newNamespace(t), pods: newNamespace(t)}
	for i, ns := range []int{n.client, n.pods} {
		connectNamespace(t, ns, migrationLinks[i].name)
		link := migrationLinks[i]
		ip(t, fmt.Sprintf("addr add %s1/24 dev %s\naddr add %s1/64 dev %s nodad\nlink set %s up", link.v4, link.name, link.v6, link.name, link.name))
		n.within(t, ns, func() {
			ip(t, fmt.Sprintf("addr add %s2/24 dev node\naddr add %s2/64 dev node nodad\nlink set node up\nlink set lo up\nroute add default via %s1\nroute add default via %s1", link.v4, link.v6, link.v4, link.v6))
		})
	}
	ip(t, "route add 10.244.0.0/16 via 192.168.8.2\nroute add fd00:10:244::/64 via fd00:8::2")
	n.within(t, n.pods, func() {
		ip(t, "route add local 10.244.0.0/16 dev lo\nroute add local fd00:10:244::/64 dev lo")
	})
	return n
}

// ip runs commands of ip(8) in the namespace of the calling thread.
func ip(t *testing.T, commands string) {
	t.Helper()
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("ip: %v\n%s", err, out)
	}
}

// newNamespace returns a descriptor of a new network namespace, which goes with it.
func newNamespace(t *testing.T) int {
	t.Helper()
	made := make(chan int)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("unshare: %v", err)
		}
		made <- openNamespace(t)
	}()
	fd := <-made
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// openNamespace returns a descriptor of the calling thread's namespace.
func openNamespace(t *testing.T) int {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Errorf("open the namespace: %v", err)
	}
	return fd
}

// connectNamespace lays a link from here, where its end gets a name, to a namespace, where
// its end is called node.
func connectNamespace(t *testing.T, ns int, name string) {
	t.Helper()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "node", PeerNamespace: netlink.NsFd(ns)}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatalf("add link %s: %v", name, err)
	}
}

// within calls f on a thread of its own in a namespace, and waits for it. What f opens
// stays there.
func (n *migrationNet) within(t *testing.T, ns int, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			t.Errorf("setns: %v", err)
			return
		}
		f()
	}()
	<-done
}

// serve starts the pods: they send back what they get, over TCP at every address and over
// UDP at those given.
func (n *migrationNet) serve(t *testing.T, udp []netip.Addr) {
	t.Helper()
	n.within(t, n.pods, func() {
		for _, address := range []string{"0.0.0.0:8080", "[::]:8080"} {
			network := "tcp4"
			if strings.HasPrefix(address, "[") {
				network = "tcp6"
			}
			listener, err := net.Listen(network, address)
			if err != nil {
				t.Errorf("listen: %v", err)
				return
			}
			t.Cleanup(func() { listener.Close() })
			go echoConnections(listener)
		}
		for _, addr := range udp {
			if addr.Is6() { // IPv6 binds to nothing less
				ip(t, fmt.Sprintf("addr add %s/128 dev lo nodad", addr))
			}
			conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 8080)))
			if err != nil {
				t.Errorf("listen: %v", err)
				return
			}
			t.Cleanup(func() { conn.Close() })
			go echoDatagrams(conn)
		}
	})
}

// echoConnections serves until the listener is closed.
func echoConnections(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			buf := make([]byte, 16)
			for {
				n, err := conn.Read(buf)
				if err != nil {
					return
				}
				if _, err := conn.Write(buf[:n]); err != nil {
					return
				}
			}
		}()
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
