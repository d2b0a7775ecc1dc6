package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// holds reports whether the kernel's tables have a cluster IP.
func holds(t testing.TB, k *kernel.Client, addr netip.Addr) bool {
	t.Helper()
	table := read(t, k)[nft.IP]
	if table == nil || table.Sets["cluster-ips"] == nil {
		return false
	}
	_, ok := table.Sets["cluster-ips"].Map[string(addr.AsSlice())]
	return ok
}

// Cluster IPs of two Services, and the first of their pods.
var (
	firstWeb  = netip.MustParseAddr("10.96.0.1")
	secondWeb = netip.MustParseAddr("10.96.0.2")
	webPods   = netip.MustParseAddr("10.244.0.5")
)

// read returns what the kernel holds of our tables.
func read(t testing.TB, k *kernel.Client) nft.Tables {
	t.Helper()
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// startWeb starts kube-nft with Service web in a namespace of its own, and waits until the
// kernel has it.
func startWeb(t *testing.T) (*kernel.Client, lab.Directory, *lab.Process) {
	t.Helper()
	lab.New(t)
	k, objects := lab.Open(t, kernel.Open), lab.NewDirectory(t)
	objects.Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods, 3)))
	p := objects.Start(t)
	lab.Eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
	return k, objects, p
}

// TestDrift lets nft do its worst to a running kube-nft.
func TestDrift(t *testing.T) {
	t.Parallel()
	k, _, p := startWeb(t)
	want := read(t, k)
	for _, command := range []string{
		"flush ruleset",
		"delete table ip kube-nft",
		"delete element ip kube-nft services { 10.96.0.1 . tcp . 80 }",
		"flush map ip kube-nft endpoints-tcp",
		"flush chain ip kube-nft services",
		"insert rule ip kube-nft services drop",
		"add chain ip6 kube-nft foreign",
		"add table ip kube-nft { flags dormant; }",
	} {
		lab.Run(t, "", append([]string{"nft"}, strings.Fields(command)...)...)
		lab.Eventually(t, "repair after nft "+command, func() bool {
			batch := change.Diff(read(t, k), want)
			return batch.Empty()
		})
	}
	p.AwaitLog(t, "repaired our tables")
	p.AwaitLog(t, "nft (pid ")
	p.Stop(t)
}

// TestSavedRulesetLoads does what nftables.service does at a restart with a file that nft list ruleset has written. It
// has our tables, and kube-nft is often back before the second command. The host's own rules must be in force
// afterwards.
func TestSavedRulesetLoads(t *testing.T) {
	t.Parallel()
	k, _, p := startWeb(t)
	want := read(t, k)
	const host = "table inet mine {\n chain input {\n type filter hook input priority 0; policy drop;\n }\n}\n"
	lab.Run(t, host, "nft", "-f", "-")
	saved := lab.Run(t, "", "nft", "list", "ruleset")
	if !strings.Contains(saved, "table ip kube-nft") {
		t.Fatalf("the saved rules lack our tables:\n%s", saved)
	}
	repaired := func() bool {
		batch := change.Diff(read(t, k), want)
		return batch.Empty()
	}
	for _, back := range []bool{false, true} { // whether kube-nft is back already
		lab.Run(t, "", "nft", "flush", "ruleset")
		if back {
			lab.Eventually(t, "repair after a flush", repaired)
		}
		lab.Run(t, saved, "nft", "-f", "-")
		lab.Run(t, "", "nft", "list", "table", "inet", "mine")
		lab.Eventually(t, "repair after the load", repaired)
	}
	p.Stop(t)
}

// TestSecondInstanceWaits starts another kube-nft while one runs, as the upgrade of a
// DaemonSet may: it waits, says so, and takes over.
func TestSecondInstanceWaits(t *testing.T) {
	t.Parallel()
	k, _, first := startWeb(t)
	newer := lab.NewDirectory(t)
	newer.Write(t, "web.yaml", lab.Web("web", secondWeb, lab.Addresses(webPods, 3)))
	second := newer.Start(t, "--healthz-bind-address", "127.0.0.1:10356", "--metrics-bind-address", "127.0.0.1:10349")
	second.AwaitLog(t, "another kube-nft programs this network namespace: waiting until it ends")
	if !holds(t, k, firstWeb) || holds(t, k, secondWeb) {
		t.Error("the second instance did not wait")
	}
	if err := first.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the second instance's commit", func() bool {
		return holds(t, k, secondWeb) && !holds(t, k, firstWeb)
	})
	second.Stop(t)
}

// TestOwnership runs kube-nft with tables of its own, kills and restarts it, and
// gives the ownership up by a restart with another setting.
func TestOwnership(t *testing.T) {
	t.Parallel()
	lab.New(t)
	k, objects := lab.Open(t, kernel.Open), lab.NewDirectory(t)
	requirePersist(t, k)
	objects.Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods, 3)))
	p := objects.Start(t, "--table-ownership", "auto")
	lab.Eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
	lab.Run(t, "", "nft", "flush", "ruleset")
	if !holds(t, k, firstWeb) {
		t.Error("nft flush ruleset emptied a table that is owned")
	}
	lab.Run(t, "", "nft", "add", "table", "inet", "mine")
	const save = "(echo 'table inet mine'; echo 'delete table inet mine'; nft list table inet mine) | nft -f -"
	for range 2 { // docs/operations.md
		lab.Run(t, "", "sh", "-ec", save)
	}
	kill(t, p)
	p = objects.Start(t, "--table-ownership", "auto")
	lab.Eventually(t, "adoption", func() bool { return !read(t, k)[nft.IP].Orphaned })
	p.Stop(t)
	lab.Run(t, "", "nft", "add", "chain", "ip", "kube-nft", "foreign") // fails if the tables have an owner
	p = objects.Start(t, "--table-ownership", "never")
	objects.Write(t, "more.yaml", lab.Web("more", secondWeb, lab.Addresses(webPods, 3)))
	lab.Eventually(t, "the next commit", func() bool { return holds(t, k, secondWeb) })
	if read(t, k)[nft.IP].Owned {
		t.Error("the tables have an owner after a start with --table-ownership=never")
	}
	lab.Run(t, "", "nft", "flush", "ruleset")
	lab.Eventually(t, "repair", func() bool { return holds(t, k, firstWeb) })
	p.Stop(t)
}

// TestLastingConnectionsAtFlush: nft flush ruleset ends a connection that lasts only at a node port, where the node
// answers a packet that is not translated; with --table-ownership=auto it ends none. See docs/limits.md. kube-nft is
// stopped meanwhile, so that it cannot be faster than the packet.
func TestLastingConnectionsAtFlush(t *testing.T) {
	t.Parallel()
	for _, ownership := range []string{"never", "auto"} {
		t.Run(ownership, func(t *testing.T) {
			t.Parallel()
			c := newCrossing(t)
			if ownership == "auto" {
				requirePersist(t, lab.Open(t, kernel.Open))
			}
			c.publish(t, nil, corev1.ProtocolTCP, nil, endpointState{number: 0})
			p := c.start(t, "--table-ownership", ownership)
			for family := range 2 {
				conns := make(map[string]net.Conn)
				for name, at := range map[string]netip.AddrPort{
					"cluster IP":    netip.AddrPortFrom(crossCluster[family], 80),
					"external IP":   netip.AddrPortFrom(crossExternal[family], 80),
					"load balancer": netip.AddrPortFrom(crossBalancer[family], 80),
					"node port":     netip.AddrPortFrom(crossNode[family], crossNodePort),
				} {
					err := c.client.Do(func() (err error) {
						conns[name], err = net.DialTimeout("tcp", at.String(), crossPatience)
						return err
					})
					if err != nil {
						t.Fatal(err)
					}
					defer conns[name].Close()
					_, _ = conns[name].Write([]byte{0})
					if err := readName(conns[name], crossEndpoint(0, family)); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
				}
				signal(t, p, syscall.SIGSTOP)
				lab.Run(t, "", "nft", "flush", "ruleset")
				for _, conn := range conns {
					_, _ = conn.Write([]byte{0})
				}
				err := readName(conns["node port"], crossEndpoint(0, family))
				if ended := errors.Is(err, syscall.ECONNRESET); ended == (ownership == "auto") || err != nil && !ended {
					t.Errorf("family %d: the connection to the node port: %v", family, err)
				}
				signal(t, p, syscall.SIGCONT)
				delete(conns, "node port")
				for name, conn := range conns { // TCP sends the byte again
					if err := readName(conn, crossEndpoint(0, family)); err != nil {
						t.Errorf("family %d: the connection to the %s: %v", family, name, err)
					}
				}
				c.await(t) // the rules are back
			}
			p.Stop(t)
		})
	}
}

// readName wants an endpoint's name over a connection.
func readName(conn net.Conn, endpoint netip.Addr) error {
	answer := make([]byte, len(endpoint.String())+1)
	_ = conn.SetDeadline(time.Now().Add(lab.Patience))
	_, err := io.ReadFull(conn, answer)
	if err == nil && string(answer) != endpoint.String()+"\n" {
		err = fmt.Errorf("answer %q", answer)
	}
	return err
}

// requirePersist skips a test that needs tables with an owner.
func requirePersist(t *testing.T, k *kernel.Client) {
	t.Helper()
	features, err := k.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !features.OwnerPersist {
		lab.SkipOrFail(t, "this kernel cannot let a table outlive its owner")
	}
}
