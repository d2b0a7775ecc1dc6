package daemon

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

// A moved is what a client has sent and got, without headers, or what the metrics say with the headers taken off.
type moved struct{ sent, returned float64 }

func (m *moved) add(n moved) { m.sent, m.returned = m.sent+n.sent, m.returned+n.returned }

// move sends n bytes or datagrams over a connection and waits for all answers.
func move(t *testing.T, conn net.Conn, n int) moved {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(lab.Patience))
	if _, ok := conn.(*net.UDPConn); ok {
		var all moved
		buffer := make([]byte, 64)
		for range n {
			if _, err := conn.Write([]byte("?")); err != nil {
				t.Fatal(err)
			}
			got, err := conn.Read(buffer)
			if err != nil {
				t.Fatal(err)
			}
			all.add(moved{1, float64(got)})
		}
		return all
	}
	go func() { _, _ = io.CopyN(conn, zeros{}, int64(n)) }()
	returned := 0
	buffer := make([]byte, 1<<16)
	for lines := 0; lines < n; {
		got, err := conn.Read(buffer)
		if err != nil {
			t.Fatalf("after %d lines of %d: %v", lines, n, err)
		}
		returned += got
		lines += strings.Count(string(buffer[:got]), "\n")
	}
	return moved{float64(n), float64(returned)}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// flowCounts are what the metrics say of shop/web.
type flowCounts struct {
	bytes, packets moved
	ended          float64
}

// payload takes the headers off: those of IP in both families, and those of TCP with its time stamps.
func (f *flowCounts) payload(family int, protocol corev1.Protocol) moved {
	header := []float64{20, 40}[family] + 32
	if protocol == corev1.ProtocolUDP {
		header += 8 - 32
	}
	return moved{f.bytes.sent - header*f.packets.sent, f.bytes.returned - header*f.packets.returned}
}

func scrapeFlows(t *testing.T) (counts flowCounts) {
	t.Helper()
	_, body, err := fetch("127.0.0.1:10249", "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]*float64{
		`bytes_total{direction="sent",`: &counts.bytes.sent, `bytes_total{direction="returned",`: &counts.bytes.returned,
		`packets_total{direction="sent",`:     &counts.packets.sent,
		`packets_total{direction="returned",`: &counts.packets.returned, `ended_connections_total{`: &counts.ended,
	} {
		series := regexp.QuoteMeta(`kube_nft_service_`+name+`namespace="shop",service="web"}`) + ` (\S+)`
		if found := regexp.MustCompile(series).FindStringSubmatch(body); found != nil {
			*to, _ = strconv.ParseFloat(found[1], 64)
		}
	}
	return counts
}

// flowState is what kube-nft status says.
func flowState(t *testing.T) (state struct {
	Problem               string
	LostConnections       uint64
	Services, Connections int
}) {
	t.Helper()
	var status struct{ Daemon struct{ FlowMetrics any } }
	status.Daemon.FlowMetrics = &state
	out := runProxy(t, "status", "-o", "json")
	if err := json.Unmarshal([]byte(out.Stdout), &status); err != nil {
		t.Fatalf("%v\n%s%s", err, out.Stdout, out.Stderr)
	}
	return state
}

// endFlows removes the entries of all translated connections of a protocol, as the kernel does after their time.
func endFlows(t *testing.T, protocol tracker.Protocol) {
	t.Helper()
	table := lab.Open(t, conntrack.Open)
	for _, family := range tracker.Families {
		filter := conntrack.Filter{Family: family, Protocol: protocol, Has: conntrack.DestinationNAT}
		flows, err := table.Flows(context.Background(), filter, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := table.Delete(context.Background(), flows, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// flowProtocols are the protocols of connections whose bytes are compared, with how many bytes or datagrams each sends.
var flowProtocols = []struct {
	protocol corev1.Protocol
	network  string
	number   tracker.Protocol
	n        int
}{
	{corev1.ProtocolTCP, "tcp", tracker.TCP, 3000},
	{corev1.ProtocolUDP, "udp", tracker.UDP, 200},
}

// newUncounted returns a crossing with a Service, while the kernel counts nothing.
func newUncounted(t *testing.T, protocol corev1.Protocol) *crossing {
	t.Helper()
	c := newCrossing(t)
	for _, n := range []*lab.Namespace{c.client, c.pods, c.pod} {
		if err := n.Do(patientTCP); err != nil {
			t.Fatal(err)
		}
	}
	if err := patientTCP(); err != nil {
		t.Fatal(err)
	}
	lab.Sysctl(t, "net.netfilter.nf_conntrack_acct", "0")
	lab.Sysctl(t, "net.netfilter.nf_conntrack_timestamp", "0")
	c.publish(t, nil, protocol, nil, endpointState{0, ""})
	return c
}

// patientTCP keeps TCP from sending a segment again because a busy machine was late with its acknowledgement, or two
// CPUs dealt with segments in another order: it would be counted twice. An option for selective acknowledgements counts
// as well.
func patientTCP() error {
	err := errors.Join(lab.SetSysctl("net.ipv4.tcp_early_retrans", "0"), lab.SetSysctl("net.ipv4.tcp_sack", "0"),
		lab.SetSysctl("net.ipv4.tcp_reordering", "300"))
	if rto := lab.SetSysctl("net.ipv4.tcp_rto_min_us", "5000000"); !errors.Is(rto, fs.ErrNotExist) { // before Linux 6.11
		err = errors.Join(err, rto)
	}
	return err
}

// TestFlowMetricsInKernel: what clients sent and got is what the metrics say, in both families and at every address,
// for connections that end and for one that outlives a daemon, of which counts what it moves while a daemon runs.
func TestFlowMetricsInKernel(t *testing.T) {
	for _, tt := range flowProtocols {
		t.Run(tt.network, func(t *testing.T) {
			c := newUncounted(t, tt.protocol)
			asks := []string{"--flow-metrics", "--metrics-bind-address", "127.0.0.1:10249"}
			proxy := c.start(t, asks...)
			lab.Eventually(t, "the kernel counts", func() bool { return flowState(t).Problem == "" && accounting(t) == 2 })
			for family := range 2 {
				before := scrapeFlows(t)
				want, connections := c.moveAll(t, family, tt.network, tt.n)
				endFlows(t, tt.number)
				lab.Eventually(t, "all ends are counted", func() bool {
					return scrapeFlows(t).ended-before.ended == float64(connections)
				})
				compareFlows(t, fmt.Sprint("family ", family), before, want, family, tt.protocol)
			}

			// One that outlives the daemon.
			target := c.targets()[0]
			conn := target.connect(t, tt.network, 0)
			move(t, conn, 3*tt.n)
			proxy.Stop(t)
			proxy = c.start(t, asks...)
			lab.Eventually(t, "the daemon knows the connection", func() bool { return flowState(t).Connections == 1 })
			want := move(t, conn, tt.n)
			endFlows(t, tt.number)
			lab.Eventually(t, "its end is counted", func() bool { return scrapeFlows(t).ended == 1 })
			compareFlows(t, "after a restart", flowCounts{}, want, target.family, tt.protocol)
			if state := flowState(t); state.LostConnections != 0 || state.Problem != "" || state.Services != 1 {
				t.Errorf("status says %+v", state)
			}
			text := strings.Join(strings.Fields(runProxy(t, "status").Stdout), " ")
			if !strings.Contains(text, "Flow metrics on; Services: 1, connections that last: 0") {
				t.Errorf("status says\n%s", text)
			}
			for _, name := range []string{"nf_conntrack_acct", "nf_conntrack_timestamp"} {
				if log := proxy.Stderr(); strings.Contains(log, name) {
					t.Errorf("the second daemon speaks of %s, which the first has set\n%s", name, log)
				}
			}
		})
	}
}

// moveAll opens a connection to each address of a family, from each place, sends n bytes or datagrams over it, and
// closes it.
func (c *crossing) moveAll(t *testing.T, family int, network string, n int) (all moved, connections int) {
	t.Helper()
	for _, target := range c.targets() {
		if target.family != family {
			continue
		}
		conn := target.connect(t, network, 0)
		all.add(moved{1, float64(len(crossEndpoint(0, family).String())) + map[string]float64{"tcp": 1}[network]})
		all.add(move(t, conn, n))
		_ = conn.Close()
		connections++
	}
	return all, connections
}

// accounting is how many of two things the kernel does: count packets, and note times.
func accounting(t *testing.T) int {
	t.Helper()
	out, err := lab.Execute("sysctl", "-n", "net.netfilter.nf_conntrack_acct", "net.netfilter.nf_conntrack_timestamp")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(out.Stdout, "1\n")
}

// compareFlows holds what the metrics have counted since against what clients sent and got.
func compareFlows(t *testing.T, when string, before flowCounts, want moved, family int, protocol corev1.Protocol) {
	t.Helper()
	now := scrapeFlows(t)
	counts := flowCounts{
		bytes:   moved{now.bytes.sent - before.bytes.sent, now.bytes.returned - before.bytes.returned},
		packets: moved{now.packets.sent - before.packets.sent, now.packets.returned - before.packets.returned},
	}
	counts.compare(t, when, want, family, protocol)
}

// compare holds counts against what clients sent and got: within one percent.
func (f *flowCounts) compare(t *testing.T, when string, want moved, family int, protocol corev1.Protocol) {
	t.Helper()
	got := f.payload(family, protocol)
	if off(got.sent, want.sent) > 0.01 || off(got.returned, want.returned) > 0.01 {
		t.Errorf("%s: %+v were counted, which is %+v without headers; the clients have %+v", when, f, got, want)
	}
	t.Logf("%s: %+v counted, %+v without headers; the clients have %+v", when, f.bytes, got, want)
}

func off(got, want float64) float64 { return math.Abs(got-want) / want }

// TestFlowMetricsNotAskedFor: without the flag the daemon leaves the kernel's accounting alone, listens to no ends of
// connections, and has no such metrics.
func TestFlowMetricsNotAskedFor(t *testing.T) {
	c := newUncounted(t, corev1.ProtocolTCP)
	c.start(t, "--metrics-bind-address", "127.0.0.1:10249")
	target := c.targets()[0]
	conn := target.connect(t, "tcp", 0)
	_ = conn.Close()
	endFlows(t, tracker.TCP)
	if accounting(t) > 0 {
		t.Error("the kernel counts")
	}
	_, body, err := fetch("127.0.0.1:10249", "/metrics")
	if err != nil || strings.Contains(body, "kube_nft_service_bytes") {
		t.Errorf("%v\n%s", err, body)
	}
	if n := endListeners(t); n > 0 {
		t.Errorf("%d sockets listen to connections that end", n)
	}
}

// endListeners counts the sockets of the namespace that listen to connections that end.
func endListeners(t *testing.T) (n int) {
	t.Helper()
	listeners, err := lab.Execute("cat", "/proc/net/netlink")
	if err != nil {
		t.Fatal(err)
	}
	const destroy = 1 << 2 // NFNLGRP_CONNTRACK_DESTROY as a bit of the groups
	for line := range strings.Lines(listeners.Stdout) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[1] != "12" { // NETLINK_NETFILTER
			continue
		}
		groups, err := strconv.ParseUint(fields[3], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if groups&destroy != 0 {
			n++
		}
	}
	return n
}

// TestSCTPInKernel: associations count, packets and bytes, and have lines of kube-nft flows. The test's packets are
// those that open an association; nothing answers.
func TestSCTPInKernel(t *testing.T) {
	c := newCrossing(t)
	c.publish(t, nil, corev1.ProtocolSCTP, nil, endpointState{0, ""})
	c.start(t, "--flow-metrics", "--metrics-bind-address", "127.0.0.1:10249")
	lab.Eventually(t, "the kernel counts", func() bool { return flowState(t).Problem == "" && accounting(t) == 2 })
	documents := startFlows(t)
	const associations, headers = 20, 20
	opening := make([]byte, 32) // a header and a chunk INIT of RFC 9260
	err := c.client.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for n := range associations {
			binary.BigEndian.PutUint32(opening, uint32(5000+n)<<16|80) // ports
			binary.BigEndian.PutUint32(opening[8:], 0)                 // the checksum
			copy(opening[12:], []byte{1, 0, 0, 20, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1})
			sum := crc32.Checksum(opening, crc32.MakeTable(crc32.Castagnoli))
			binary.LittleEndian.PutUint32(opening[8:], sum)
			if err := unix.Sendto(fd, opening, 0, &unix.SockaddrInet4{Addr: crossCluster[0].As4()}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "all associations have ended", func() bool {
		endFlows(t, tracker.SCTP)
		return scrapeFlows(t).ended == associations
	})
	if got := scrapeFlows(t); got.bytes.sent != float64(associations*(headers+len(opening))) ||
		got.packets != (moved{associations, 0}) {
		t.Errorf("%+v", got)
	}
	for range associations {
		d := documents.next(t)
		if d.Protocol != "sctp" || d.Sent.Packets != 1 || d.Sent.Bytes != uint64(headers+len(opening)) {
			t.Errorf("%+v", d)
		}
	}
}
