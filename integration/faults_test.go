package integration

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/kube-nft/kube-nft/integration/netns"
	"github.com/vishvananda/netlink"
)

// clusterIPOf numbers cluster IPs.
func clusterIPOf(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}) }

// TestStopped stops kube-nft for a while, in which the cluster and the tables change.
func TestStopped(t *testing.T) {
	t.Parallel()
	k, objects, p := startWeb(t)
	signal(t, p, syscall.SIGSTOP)
	netns.Run(t, "", "nft", "flush", "ruleset")
	objects.write(t, "more.yaml", webObjects("more", secondWeb, addressesFrom(webPods, 3)))
	if holds(t, k, secondWeb) {
		t.Error("it works while it is stopped")
	}
	signal(t, p, syscall.SIGCONT)
	eventually(t, "both Services", func() bool { return holds(t, k, firstWeb) && holds(t, k, secondWeb) })
	stop(t, p)
}

func signal(t *testing.T, p *netns.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// TestNobodyReadsTheLog fills the pipe that kube-nft logs to, and then closes it.
func TestNobodyReadsTheLog(t *testing.T) {
	t.Parallel()
	netns.New(t)
	k, objects := openKernel(t), newDirectory(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fill(t, writer)
	cmd := exec.Command(buildProxy(t), "--manifests", string(objects), "--hostname-override", scenarioNode, "--log-level", "debug")
	cmd.Stderr, cmd.SysProcAttr = writer, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	objects.write(t, "web-0.yaml", webObjects("web-0", clusterIPOf(0), addressesFrom(webPods, 1)))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for i := 1; i < 20; i++ {
		name := fmt.Sprintf("web-%d", i)
		objects.write(t, name+".yaml", webObjects(name, clusterIPOf(i), addressesFrom(webPods, 1)))
		eventually(t, name, func() bool { return holds(t, k, clusterIPOf(i)) })
		if i == 10 {
			reader.Close()
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// fill writes to a pipe until it takes no more.
func fill(t *testing.T, pipe *os.File) {
	t.Helper()
	raw, err := pipe.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 4096)
	err = raw.Control(func(fd uintptr) {
		for err := error(nil); err == nil; {
			_, err = syscall.Write(int(fd), block)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAffinityMapIsFull has more clients than affinity maps remember: each of them is served,
// and those that are remembered stay where they are.
func TestAffinityMapIsFull(t *testing.T) {
	t.Parallel()
	netns.New(t)
	k, objects := openKernel(t), newDirectory(t)
	pods := addressesFrom(webPods, 4)
	clients := addressesFrom(netip.MustParseAddr("192.168.7.1"), 20)
	addLoopback(t, append(pods, clients...))
	netns.Run(t, "", "ip", "route", "add", "10.96.0.0/16", "dev", "lo")
	served := make(chan netip.Addr, 1)
	for _, pod := range pods {
		serve(t, netip.AddrPortFrom(pod, 8080), served)
	}
	objects.write(t, "web.yaml", webObjects("web", firstWeb, pods, "sessionAffinity: ClientIP"))
	p := objects.start(t, "--affinity-size", "2")
	eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
	faithful := 0
	for _, client := range clients {
		first, stays := visit(t, client, served), true
		for range 15 {
			if visit(t, client, served) != first {
				stays = false
			}
		}
		if stays { // by chance once in 10^9
			faithful++
		}
	}
	if faithful < 1 || faithful > 4 {
		t.Errorf("%d of %d clients stay with their endpoint, want about the 2 that fit", faithful, len(clients))
	}
	stop(t, p)
}

// addLoopback gives the loopback device addresses.
func addLoopback(t *testing.T, addrs []netip.Addr) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range addrs {
		if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}}); err != nil {
			t.Fatal(err)
		}
	}
}

// serve accepts connections and tells where each arrived.
func serve(t *testing.T, at netip.AddrPort, served chan<- netip.Addr) {
	t.Helper()
	listener, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
			served <- at.Addr()
		}
	}()
}

// visit connects a client to the Service and returns the endpoint that served it.
func visit(t *testing.T, client netip.Addr, served <-chan netip.Addr) netip.Addr {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: client.AsSlice()}}
	conn, err := dialer.DialContext(t.Context(), "tcp4", netip.AddrPortFrom(firstWeb, 80).String())
	if err != nil {
		t.Fatalf("client %s: %v", client, err)
	}
	defer conn.Close()
	return <-served
}
