package migration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
)

// requireIPVS skips the test where the kernel lacks ip_vs, dummy devices or SCTP, or the machine ipvsadm, as
// small kernels do: make kernels has them all.
func requireIPVS(t *testing.T) {
	t.Helper()
	lab.Require(t)
	for _, module := range []string{"ip_vs", "ip_vs_rr", "sctp", "dummy"} {
		_ = exec.Command("modprobe", module).Run() // it may be built in
	}
	_, server := os.Stat("/proc/net/ip_vs")
	_, admin := exec.LookPath("ipvsadm")
	socket, sctp := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if sctp == nil {
		unix.Close(socket)
	}
	if err := errors.Join(server, admin, sctp); err != nil {
		t.Skip(err)
	}
}

// The Service of SCTP, which the shapes lack.
var (
	signalService  = netip.MustParseAddrPort("10.96.200.1:3868")
	signalEndpoint = netip.MustParseAddrPort("10.244.200.1:3868")
)

// A foreignServer is a virtual server of an administrator, at a port that is no node port.
const foreignServer = "-A -t 192.168.7.1:9443 -s rr\n-a -t 192.168.7.1:9443 -r 10.244.0.1:8080 -m -w 1\n"

// newIPVSMigration makes a node on which kube-proxy's IPVS mode has been until now: ip_vs, kube-ipvs0, ipsets and
// rules.
func newIPVSMigration(t *testing.T) *migration {
	t.Helper()
	m := &migration{shapes: shapesOf(30), binary: lab.Program(t), net: newMigrationNet(t), source: lab.NewDirectory(t)}
	signal := lab.Service("shop", "signal", signalService.Addr())
	signal.Spec.Ports[0].Protocol, signal.Spec.Ports[0].Port = corev1.ProtocolSCTP, int32(signalService.Port())
	slice := lab.Slice("shop", "signal", 1, signal.Spec.IPFamilies[0], []netip.Addr{signalEndpoint.Addr()})
	slice.Ports[0].Protocol, slice.Ports[0].Port = new(corev1.ProtocolSCTP), new(int32(signalEndpoint.Port()))
	m.source.Write(t, "objects.yaml", lab.Manifest(append(migrationObjects(m.shapes), signal, slice)...))

	for _, setting := range []string{"conntrack=1", "conn_reuse_mode=0", "expire_nodest_conn=1",
		"expire_quiescent_template=1"} {
		name, value, _ := strings.Cut(setting, "=")
		lab.Sysctl(t, "net.ipv4.vs."+name, value)
	}
	lab.Run(t, "", "ipvsadm", "--set", "900", "10", "60")
	servers := foreignServer + fmt.Sprintf("-A --sctp-service %s -s rr\n-a --sctp-service %[1]s -r %s -m -w 1\n",
		signalService, signalEndpoint)
	addrs := []netip.Addr{signalService.Addr()}
	for _, s := range m.shapes {
		second := netip.MustParseAddr(map[nft.Family]string{nft.IP: "192.168.8.1", nft.IP6: "fd00:8::1"}[s.Family])
		servers += s.Servers(migrationNode(s.Family), second)
		addrs = append(addrs, s.ServiceAddresses()...)
	}
	if err := addDevice(addrs); err != nil {
		t.Fatal(err)
	}
	lab.Run(t, servers, "ipvsadm", "-R")
	for _, s := range m.shapes {
		sets := s.IPSets()
		if s.Family == nft.IP {
			sets += fmt.Sprintf("add KUBE-CLUSTER-IP %s,sctp:%d\n", signalService.Addr(), signalService.Port())
		}
		lab.Run(t, sets, "ipset", "restore")
		lab.Run(t, s.IPVS(), iptablesProgram(s.Family, "nft", "restore"), "-w")
	}
	_, pods := migrationTargets(m.shapes)
	m.net.serve(t, pods)
	if err := m.net.pods.Do(serveSignals); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestShadowIPVSKernel: beside the IPVS mode the shadow mode finds what differs, and nothing else.
func TestShadowIPVSKernel(t *testing.T) {
	requireIPVS(t)
	m := newIPVSMigration(t)
	m.startShadow(t)
	m.awaitDifferences(t)
	if found := m.awaitComparisons(t, 3); len(found) > 0 {
		t.Errorf("differences: %v", found)
	}
	lab.Run(t, "", "ipvsadm", "-d", "-t", "10.96.0.1:80", "-r", "10.244.0.1:8080")
	m.awaitDifferences(t, "endpoints: 10.96.0.1:80/tcp of shop/service-ip-0:http: kube-proxy lacks 10.244.0.1:8080")
}

// addDevice makes kube-ipvs0 with addresses.
func addDevice(addrs []netip.Addr) error {
	err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: legacy.Device}})
	for _, addr := range addrs {
		err = errors.Join(err, lab.AddAddress(legacy.Device, netip.PrefixFrom(addr, addr.BitLen())))
	}
	return err
}

// serveSignals sends back what comes over SCTP, until the process ends.
func serveSignals() error {
	if err := lab.AddAddress("lo", netip.PrefixFrom(signalEndpoint.Addr(), 32)); err != nil {
		return err
	}
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return err
	}
	at := unix.SockaddrInet4{Addr: signalEndpoint.Addr().As4(), Port: int(signalEndpoint.Port())}
	if err := errors.Join(unix.Bind(listener, &at), unix.Listen(listener, 10)); err != nil {
		return err
	}
	go func() {
		for {
			socket, _, err := unix.Accept(listener)
			if err != nil {
				return
			}
			conn := os.NewFile(uintptr(socket), "sctp")
			go func() {
				defer conn.Close()
				io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{conn})
			}()
		}
	}()
	return nil
}

// dialSignals connects over SCTP.
func dialSignals() (exchanger, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return nil, err
	}
	to := unix.SockaddrInet4{Addr: signalService.Addr().As4(), Port: int(signalService.Port())}
	if err := errors.Join(unix.Connect(socket, &to), unix.SetNonblock(socket, true)); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(socket), "sctp"), nil
}

// startLightLoad makes connections that last, from the clients and from the node itself, and a few new ones: an
// emulated processor does not do more.
func (m *migration) startLightLoad(t *testing.T, targets []target) {
	t.Helper()
	l := &load{pace: 500 * time.Millisecond, stop: make(chan struct{}), began: time.Now()}
	t.Cleanup(l.end)
	m.load = l
	for _, x := range targets {
		l.worker(m.net.client, func() { l.last(x) })
		conn, err := net.DialTimeout(x.network, x.address.String(), lab.Patience)
		if err != nil {
			t.Fatal(err)
		}
		l.wait.Go(func() { l.keep(conn, x) })
	}
	tcp := slices.DeleteFunc(slices.Clone(targets), func(x target) bool { return x.network != "tcp" })
	l.worker(m.net.client, func() { l.stream(tcp, 100*time.Millisecond, &l.tcp) })
	err := m.net.client.Do(func() error {
		conn, err := dialSignals()
		if err == nil {
			l.wait.Go(func() { l.keep(conn, target{"sctp", signalService}) })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMigrateIPVSKernel: connections that ip_vs translates go on after the takeover, from other hosts and from the
// node itself, and new ones are ours. Virtual servers and device stay for them, whatever daemon runs, and go when
// they have ended.
func TestMigrateIPVSKernel(t *testing.T) {
	requireIPVS(t)
	m := newIPVSMigration(t)
	targets, _ := migrationTargets(m.shapes)
	m.startLightLoad(t, targets)
	m.load.await(t, 10)
	m.expectPlan(t, "virtual server tcp 192.168.7.1:30000", "virtual server udp 192.168.8.1:30001",
		"virtual server sctp "+signalService.String(), "if nothing needs it, remove it with ipvsadm -D -t 192.168.7.1:9443",
		"apply would take this node over")
	journal := m.apply(t)
	if want := "kube-proxy's IPVS mode still has "; !strings.Contains(journal, want) {
		t.Errorf("apply does not say %q:\n%s", want, journal)
	}
	m.load.await(t, 10)
	if left := proxys(saveIPTables("nft")(t)); left != "" {
		t.Errorf("left of kube-proxy's rules:\n%s", left)
	}
	m.expectPlan(t, "virtual server tcp 192.168.7.1:30000", "device kube-ipvs0")
	for range 2 {
		daemon := m.startDaemon(t)
		awaitMetric(t, `kube_nft_takeover{state="draining"} 1`)
		status := lab.Run(t, "", m.binary, "status")
		if want := "kube-proxy's IPVS mode still has "; !strings.Contains(status, want) {
			t.Errorf("status does not say %q:\n%s", want, status)
		}
		m.load.await(t, 10)
		m.expectRefused(t)
		daemon.Stop(t)
	}
	daemon := m.startDaemon(t)
	m.load.await(t, 10)
	m.load.check(t)
	ended := time.Now()
	for !strings.Contains(scrape(), `kube_nft_takeover{state="done"} 1`) { // TIME_WAIT of ip_vs is two minutes
		if time.Since(ended) > 5*time.Minute {
			t.Fatalf("not done:\n%s\n%s", lab.Run(t, "", "ipvsadm", "-Ln"), daemon.Stderr())
		}
		time.Sleep(time.Second)
	}
	t.Logf("done %v after the last connection was closed", time.Since(ended))
	m.expectNoIPVS(t)
	m.expectPlan(t, "bring our tables up to date; nothing of kube-proxy's is left", "ipvsadm -D -t 192.168.7.1:9443")
	daemon.Stop(t)
}

// expectPlan expects texts in the plan.
func (m *migration) expectPlan(t *testing.T, texts ...string) {
	t.Helper()
	plan := ""
	for range 5 { // the kernel may be too slow for a first plan, for which it loads modules
		out, err := lab.Execute(append([]string{m.binary, "migrate", "plan"}, m.applyArgs()[1:]...)...)
		if err != nil || out.Code == 1 {
			t.Fatalf("exit code %d, %v\n%s%s", out.Code, err, out.Stdout, out.Stderr)
		}
		if plan = strings.Join(strings.Fields(out.Stdout), " "); out.Code == 0 {
			break
		}
	}
	for _, text := range texts {
		if !strings.Contains(plan, text) {
			t.Errorf("the plan does not say %q:\n%s", text, plan)
		}
	}
}

// expectRefused expects that what no Service serves is not served while kube-ipvs0 has its addresses: a node port at
// another address of the node, unused ports of Services, and those that the node itself listens at.
func (m *migration) expectRefused(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp4", "0.0.0.0:9022")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	shape := m.shapes[0]
	for _, at := range []string{"192.168.8.1:30000", shape.ClusterIP(1).String() + ":81",
		shape.ClusterIP(1).String() + ":30000", shape.ClusterIP(1).String() + ":9022",
		shape.LoadBalancer(2).String() + ":9022"} {
		err := m.net.client.Do(func() error {
			conn, err := net.DialTimeout("tcp", at, lab.Patience)
			if err == nil {
				conn.Close()
			}
			return err
		})
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a connection to %s: %v, want that it is refused", at, err)
		}
	}
}

// expectNoIPVS expects that nothing of kube-proxy's IPVS mode is left, and the administrator's virtual server is.
func (m *migration) expectNoIPVS(t *testing.T) {
	t.Helper()
	servers := lab.Run(t, "", "ipvsadm", "-Sn")
	if servers != foreignServer {
		t.Errorf("virtual servers:\n%swant:\n%s", servers, foreignServer)
	}
	if links := lab.Run(t, "", "ip", "-brief", "link"); strings.Contains(links, legacy.Device) {
		t.Errorf("left:\n%s", links)
	}
	if sets := lab.Run(t, "", "ipset", "list", "-n"); strings.Contains(sets, "KUBE-") {
		t.Errorf("ipsets left:\n%s", sets)
	}
}

// TestMigrateIPVSAtOnceKernel: without time to drain, clients of UDP reach our endpoints with one of their next
// datagrams, and connections of TCP are reset.
func TestMigrateIPVSAtOnceKernel(t *testing.T) {
	requireIPVS(t)
	m := newIPVSMigration(t)
	var conns []net.Conn
	shape := m.shapes[0]
	dial := func() error {
		for _, i := range []int{1, 6} {
			conn, err := net.Dial(shape.Protocol(i), netip.AddrPortFrom(shape.ClusterIP(i), 80).String())
			if err == nil {
				conns = append(conns, conn)
				err = exchange(conn)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := m.net.client.Do(dial); err != nil {
		t.Fatal(err)
	}
	m.migrate(t, append(m.applyArgs(), "--takeover-drain-timeout", "0s")...)
	m.expectNoIPVS(t)
	for i, conn := range conns {
		answers, end := m.outcome(conn)
		if udp := i == 1; udp && !answers || !udp && !errors.Is(end, unix.ECONNRESET) {
			t.Errorf("%s %s to %s: answered %v, end %v", conn.LocalAddr().Network(), conn.LocalAddr(), conn.RemoteAddr(),
				answers, end)
		}
	}
}

// outcome sends until there is an answer, or the connection ends.
func (m *migration) outcome(conn net.Conn) (answers bool, end error) {
	defer conn.Close()
	for deadline := time.Now().Add(lab.Patience); time.Now().Before(deadline); {
		conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
		_, writeErr := conn.Write([]byte{'x'})
		_, readErr := conn.Read(make([]byte, 1))
		switch err := errors.Join(writeErr, readErr); {
		case err == nil:
			return true, nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return false, err
		}
	}
	return false, os.ErrDeadlineExceeded
}
