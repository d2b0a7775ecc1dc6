package daemon

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// webIPv6 is the cluster IP of a Service of IPv6.
var webIPv6 = netip.MustParseAddr("fd00:96::1")

// clusterIPOf numbers cluster IPs.
func clusterIPOf(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}) }

// TestStopped stops kube-nft for a while, in which the cluster and the tables change.
func TestStopped(t *testing.T) {
	t.Parallel()
	k, objects, p := startWeb(t)
	signal(t, p, syscall.SIGSTOP)
	lab.Run(t, "", "nft", "flush", "ruleset")
	objects.Write(t, "more.yaml", lab.Web("more", secondWeb, lab.Addresses(webPods, 3)))
	if holds(t, k, secondWeb) {
		t.Error("it works while it is stopped")
	}
	signal(t, p, syscall.SIGCONT)
	lab.Eventually(t, "both Services", func() bool { return holds(t, k, firstWeb) && holds(t, k, secondWeb) })
	p.Stop(t)
}

func signal(t *testing.T, p *lab.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// TestLogWithoutReader fills the pipe that kube-nft logs to, and then closes it.
func TestLogWithoutReader(t *testing.T) {
	t.Parallel()
	lab.New(t)
	k, objects := lab.Open(t, kernel.Open), lab.NewDirectory(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fill(t, writer)
	cmd := exec.Command(lab.Program(t), "--manifests", string(objects), "--hostname-override", lab.NodeName,
		"--log-level", "debug")
	cmd.Stderr, cmd.SysProcAttr = writer, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	objects.Write(t, "web-0.yaml", lab.Web("web-0", clusterIPOf(0), lab.Addresses(webPods, 1)))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for i := 1; i < 20; i++ {
		name := fmt.Sprintf("web-%d", i)
		objects.Write(t, name+".yaml", lab.Web(name, clusterIPOf(i), lab.Addresses(webPods, 1)))
		lab.Eventually(t, name, func() bool { return holds(t, k, clusterIPOf(i)) })
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

// affine asks for session affinity.
func affine(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }

// serveAffine gives this host the addresses of pods and clients, answers at the pods, and writes a Service with session
// affinity whose endpoints they are. The channel gets the pod that has answered.
func serveAffine(t *testing.T, objects lab.Directory, cluster netip.Addr, pods, clients []netip.Addr) chan netip.Addr {
	t.Helper()
	for _, addr := range slices.Concat(pods, clients) {
		if err := lab.AddAddress("lo", netip.PrefixFrom(addr, addr.BitLen())); err != nil {
			t.Fatal(err)
		}
	}
	lab.Run(t, "", "ip", "route", "add", netip.PrefixFrom(cluster, cluster.BitLen()/2).Masked().String(), "dev", "lo")
	served := make(chan netip.Addr, 1)
	for _, pod := range pods {
		serve(t, netip.AddrPortFrom(pod, 8080), served)
	}
	objects.Write(t, "web.yaml", lab.Web("web", cluster, pods, affine))
	return served
}

// TestAffinityMapIsFull has more clients than fit into affinity maps: each of them is served,
// and those that have an entry stay where they are.
func TestAffinityMapIsFull(t *testing.T) {
	t.Parallel()
	lab.New(t)
	k, objects := lab.Open(t, kernel.Open), lab.NewDirectory(t)
	pods := lab.Addresses(webPods, 4)
	clients := lab.Addresses(netip.MustParseAddr("192.168.7.1"), 20)
	served := serveAffine(t, objects, firstWeb, pods, clients)
	p := objects.Start(t, "--affinity-size", "2")
	lab.Eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
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
	p.Stop(t)
}

// TestAffinityEntryLivesWithItsService: a client gets an entry, keeps its endpoint over a restart, its entry gets a new
// timeout, and the map goes when no Service has affinity any more.
func TestAffinityEntryLivesWithItsService(t *testing.T) {
	t.Parallel()
	lab.New(t)
	k, objects := lab.Open(t, kernel.Open), lab.NewDirectory(t)
	pods, client := lab.Addresses(webPods, 2), netip.MustParseAddr("192.168.7.1")
	served := serveAffine(t, objects, firstWeb, pods, []netip.Addr{client})
	p := objects.Start(t)
	lab.Eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
	first := visit(t, client, served)
	name, timeout := affinityEntry(t, k, client)
	if name == "" || timeout != 3*time.Hour {
		t.Fatalf("the client has an entry of %v in map %q", timeout, name)
	}
	p.Stop(t)
	p = objects.Start(t)
	p.AwaitLog(t, "kube-nft started: the kernel had all Services already")
	if again := visit(t, client, served); again != first {
		t.Errorf("after a restart the client was sent to %s, not to %s", again, first)
	}
	objects.Write(t, "web.yaml", lab.Web("web", firstWeb, pods, affine, func(s *corev1.Service) {
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(7200))}}
	}))
	lab.Eventually(t, "an entry of two hours", func() bool {
		_, timeout := affinityEntry(t, k, client)
		if timeout != 2*time.Hour && !changesTimeouts(t) {
			visit(t, client, served)
		}
		return timeout == 2*time.Hour
	})
	if again := visit(t, client, served); again != first {
		t.Errorf("with another timeout the client was sent to %s, not to %s", again, first)
	}
	objects.Write(t, "web.yaml", lab.Web("web", firstWeb, pods, func(*corev1.Service) {}))
	lab.Eventually(t, "no affinity map", func() bool {
		tables, _, err := k.Read(t.Context())
		return err == nil && tables[nft.IP].Sets[name] == nil
	})
	p.Stop(t)
}

// TestAffinityOfIPv6Clients: an entry has the first 64 and the last 32 bits of its client. Clients of one /64 that
// differ between these share it.
func TestAffinityOfIPv6Clients(t *testing.T) {
	t.Parallel()
	lab.New(t)
	k, objects := lab.Open(t, kernel.Open), lab.NewDirectory(t)
	pods := lab.Addresses(netip.MustParseAddr("fd00:244::5"), 8)
	var clients []netip.Addr
	for _, text := range []string{
		"2001:db8::7", "2001:db8::ffff:0:7", "2001:db8::1:0:7", "2001:db8::8", "2001:db8:0:1::7",
	} {
		clients = append(clients, netip.MustParseAddr(text))
	}
	served := serveAffine(t, objects, webIPv6, pods, clients)
	p := objects.Start(t)
	p.AwaitLog(t, "kube-nft started")
	for range 3 {
		at := make(map[netip.Addr]netip.Addr)
		for _, client := range clients {
			at[client] = visit(t, client, served)
		}
		if at[clients[0]] != at[clients[1]] || at[clients[0]] != at[clients[2]] {
			t.Errorf("%v: the first three clients have not the same endpoint", at)
		}
	}
	entries := 0
	tables := read(t, k)
	for _, held := range tables[nft.IP6].Sets {
		if held.Set.Dynamic {
			list, err := k.Elements(t.Context(), nft.IP6, held.Set)
			if err != nil {
				t.Fatal(err)
			}
			entries += len(list)
		}
	}
	if entries != 3 {
		t.Errorf("%d clients have %d entries, want 3", len(clients), entries)
	}
	p.Stop(t)
}

// changesTimeouts reports whether the kernel changes the timeout of an entry: since Linux 6.12.
func changesTimeouts(t *testing.T) bool {
	t.Helper()
	var name unix.Utsname
	var major, minor int
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 12
}

// affinityEntry finds the affinity map of the client's entry, and the timeout of the entry; zero if there is none.
func affinityEntry(t *testing.T, k *kernel.Client, client netip.Addr) (name string, timeout time.Duration) {
	t.Helper()
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, held := range tables[nft.IP].Sets {
		if !held.Set.Dynamic {
			continue
		}
		entries, err := k.Elements(t.Context(), nft.IP, held.Set)
		if err != nil {
			t.Fatal(err)
		}
		for entry, element := range entries {
			if _, addr, ok := nft.SplitNumberedKey(nft.IP, entry); ok && addr == client {
				return held.Set.Name, element.Life.Timeout
			}
		}
	}
	return "", 0
}

// serve accepts connections and tells where each arrived.
func serve(t *testing.T, at netip.AddrPort, served chan<- netip.Addr) {
	t.Helper()
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	lab.Serve(listener, func(conn net.Conn) {
		conn.Close()
		served <- at.Addr()
	})
}

// visit connects a client to the Service and returns the endpoint that served it.
func visit(t *testing.T, client netip.Addr, served <-chan netip.Addr) netip.Addr {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: client.AsSlice()}}
	at := firstWeb
	if client.Is6() {
		at = webIPv6
	}
	conn, err := dialer.DialContext(t.Context(), "tcp", netip.AddrPortFrom(at, 80).String())
	if err != nil {
		t.Fatalf("client %s: %v", client, err)
	}
	defer conn.Close()
	return <-served
}
