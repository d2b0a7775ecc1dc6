package daemon

import (
	"bytes"
	"encoding/json"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A tracedPacket is what the tests want of a line of trace -o json.
type tracedPacket struct {
	Destination, Service, Endpoint, Outcome, In string
	Masquerade                                  bool
	Steps                                       []struct{ Table, Chain, Rule, Verdict string }
}

// traceWorld programs the examples in a node that forwards between a client and a pod, which accepts connections.
func traceWorld(t *testing.T) (client *lab.Namespace) {
	t.Helper()
	client, pods := forwardingNode(t, "10.244.0.0/16")
	listenIn(t, pods)
	return client
}

// listenIn makes the pods accept connections.
func listenIn(t *testing.T, pods *lab.Namespace) (listener net.Listener) {
	t.Helper()
	if err := pods.Do(func() (err error) {
		listener, err = net.Listen("tcp4", "0.0.0.0:8080")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

// forwardingNode programs the examples in a node that forwards between a client and pods. Connections from outside the
// cluster's addresses are masqueraded.
func forwardingNode(t *testing.T, cluster string) (client, pods *lab.Namespace) {
	t.Helper()
	lab.New(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	namespace := func(device, node, address, gateway string, routes ...string) *lab.Namespace {
		n, err := lab.NewNamespace()
		must(err)
		t.Cleanup(func() { n.Close() })
		must(lab.Connect(device, n, "eth0"))
		must(lab.AddAddress(device, netip.MustParsePrefix(node)))
		must(n.Do(func() error { return lab.AddAddress("eth0", netip.MustParsePrefix(address)) }))
		for _, route := range routes {
			must(n.Do(func() error {
				return lab.AddRoute("eth0", netip.MustParsePrefix(route), netip.MustParseAddr(gateway))
			}))
		}
		return n
	}
	client = namespace("client", "192.168.0.2/24", "192.168.0.9/24", "192.168.0.2", "10.0.0.0/8")
	pods = namespace("pods", "10.244.0.1/24", "10.244.0.11/24", "10.244.0.1", "192.168.0.0/24")
	for _, addr := range []string{"10.244.0.12/32", "10.244.0.13/32"} {
		must(pods.Do(func() error { return lab.AddAddress("eth0", netip.MustParsePrefix(addr)) }))
	}
	must(lab.Forward())
	ruleset := lab.Run(t, "", lab.Program(t), "--manifests", "../../deploy/examples", "--hostname-override", "node-a",
		"--cluster-cidr", cluster+",fd00:10:244::/64", "--dry-run")
	lab.Run(t, ruleset, "nft", "-f", "-")
	return client, pods
}

// traced runs trace, lets connect make connections, and returns the packets that it told.
func traced(t *testing.T, connect func(), args ...string) (packets []tracedPacket) {
	t.Helper()
	var out, log bytes.Buffer
	ready := make(chan struct{})
	command := exec.Command(lab.Program(t), append([]string{"trace", "-o", "json"}, args...)...)
	command.Stdout, command.Stderr = &out, &signalling{&log, ready}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	end := time.AfterFunc(60*time.Second, func() { command.Process.Kill() })
	defer end.Stop()
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		command.Process.Kill()
		t.Fatalf("trace %v does not begin: %s", args, log.String())
	}
	connect()
	if err := command.Wait(); err != nil {
		t.Fatalf("trace %v: %v\n%s%s", args, err, log.String(), out.String())
	}
	for line := range strings.Lines(out.String()) {
		var p tracedPacket
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		packets = append(packets, p)
	}
	if left := lab.Run(t, "", "nft", "list", "tables"); strings.Contains(left, "trace") {
		t.Errorf("left behind:\n%s", left)
	}
	return packets
}

// signalling closes a channel at the first write.
type signalling struct {
	to    *bytes.Buffer // not embedded: it would be read into past Write
	begun chan struct{}
}

func (s *signalling) Write(p []byte) (int, error) {
	select {
	case <-s.begun:
	default:
		close(s.begun)
	}
	return s.to.Write(p)
}

// TestTrace follows first packets through the kernel: forwarded ones, rejected ones, those that another table drops.
func TestTrace(t *testing.T) {
	t.Parallel()
	client := traceWorld(t)
	dial := func(to ...string) func() {
		return func() {
			for _, address := range to {
				client.Do(func() error {
					if conn, err := net.DialTimeout("tcp4", address, 300*time.Millisecond); err == nil {
						conn.Close()
					}
					return nil
				})
			}
		}
	}
	chains := func(p tracedPacket) string {
		var names []string
		for _, s := range p.Steps {
			if name := s.Table + " " + s.Chain; len(names) == 0 || names[len(names)-1] != name {
				names = append(names, name)
			}
		}
		return strings.Join(names, ", ")
	}

	packets := traced(t, dial("10.96.0.99:80", "10.96.0.80:80", "192.168.0.2:30080"), "shop/web:http", "--count", "2")
	for i, destination := range []string{"10.96.0.80:80", "192.168.0.2:30080"} {
		p := packets[i]
		if p.Destination != destination || p.Service != "shop/web:http" || !strings.HasPrefix(p.Endpoint, "10.244.0.1") ||
			!strings.HasPrefix(p.Outcome, "to 10.244.0.1") || !p.Masquerade || p.In != "client" {
			t.Errorf("%+v", p)
		}
		if path := chains(p); !strings.Contains(path, "kube-nft services") ||
			!strings.Contains(path, "kube-nft nat-postrouting") {
			t.Errorf("the way of a packet to %s: %s", destination, path)
		}
	}

	packets = traced(t, dial("10.96.0.80:80", "10.96.0.99:80"), "10.96.0.99:80/tcp", "--source", "192.168.0.0/24",
		"--count", "1")
	if want := "rejected in table ip kube-nft, chain reject-new"; packets[0].Outcome != want ||
		packets[0].Service != "shop/reports:http" {
		t.Errorf("%+v, want %s", packets[0], want)
	}

	// What comes while it traces has a name and a text, too.
	for wait := 1500 * time.Millisecond; ; wait *= 2 {
		packets = traced(t, func() {
			lab.Run(t, "add chain ip kube-nft late\nadd rule ip kube-nft late tcp dport 80 drop\n"+
				"add element ip kube-nft services { 10.96.0.124 . tcp . 80 comment \"shop/late:http\" : goto late }\n",
				"nft", "-f", "-")
			time.Sleep(wait) // it reads the tables once a second, or more seldom on a busy machine
			dial("10.96.0.124:80")()
		}, "--source", "192.168.0.9", "--count", "1")
		lab.Run(t,
			"delete element ip kube-nft services { 10.96.0.124 . tcp . 80 }\nflush chain ip kube-nft late\ndelete chain ip "+
				"kube-nft late\n", "nft", "-f", "-")
		steps := packets[0].Steps
		if packets[0].Service == "shop/late:http" && len(steps) > 0 && strings.HasSuffix(steps[len(steps)-1].Rule,
			"th dport 80 drop") {
			break
		}
		if wait > 20*time.Second {
			t.Fatalf("%v after the tables have changed: %+v", wait, packets[0])
		}
	}

	lab.Run(t,
		"add table inet fw\nadd chain inet fw forward { type filter hook forward priority 0; }\nadd rule inet fw forward "+
			"tcp dport 8080 drop\n", "nft", "-f", "-")
	packets = traced(t, dial("10.96.0.80:80"), "--source", "192.168.0.9", "--count", "1")
	if want := "dropped in table inet fw, chain forward"; packets[0].Outcome != want {
		t.Errorf("%+v, want %s", packets[0], want)
	}
}

// TestTraceLeavesNothing: the kernel removes what a killed trace had.
func TestTraceLeavesNothing(t *testing.T) {
	t.Parallel()
	traceWorld(t)
	p := lab.Start(t, lab.Program(t), "trace", "shop/web")
	p.AwaitLog(t, "tracing")
	if tables := lab.Run(t, "", "nft", "list", "tables"); !strings.Contains(tables, "kube-nft-trace-") {
		t.Errorf("trace has no table of its own:\n%s", tables)
	}
	p.Kill()
	lab.Eventually(t, "the table of a killed trace to go", func() bool {
		return !strings.Contains(lab.Run(t, "", "nft", "list", "tables"), "trace")
	})
}

// TestTraceRefuses: what cannot be traced is refused with a word.
func TestTraceRefuses(t *testing.T) {
	t.Parallel()
	traceWorld(t)
	for _, c := range []struct {
		args string
		want string
	}{
		{"", "expected a Service or an address"},
		{"shop/nothing", "no Service shop/nothing is programmed"},
		{"nonsense", "expected NAMESPACE/SERVICE"},
		{"shop/web --source here", "expected an IP address or a CIDR"},
		{"10.96.0.80:80/tcp --source fd00::1", "of different IP families"},
		{"shop/web --rate 0", "--rate 0"},
		{"shop/web -o yaml", "--output yaml"},
	} {
		out, err := exec.Command(lab.Program(t), append([]string{"trace"}, strings.Fields(c.args)...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("trace %s: %v, %s; want %s", c.args, err, out, c.want)
		}
	}
}
