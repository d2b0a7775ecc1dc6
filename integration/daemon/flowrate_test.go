package daemon

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

var (
	flowRate = flag.Int("flow-rate", 2000, "connections a second of TestFlowRate")
	flowFor  = flag.Duration("flow-for", 3*time.Second, "how long TestFlowRate opens connections")
)

// flowSources are the clients of TestFlowRate: each opens one connection.
var flowSources = netip.MustParsePrefix("10.128.0.0/9")

// openFlows sends one datagram to a Service from each of many addresses, so many a second, and returns how many came
// to the node and were forwarded: a busy machine may drop some before.
func (c *crossing) openFlows(t *testing.T, rate int, during time.Duration) int {
	t.Helper()
	lab.Run(t, `table inet opened {
		counter forwarded {}
		chain forward { type filter hook forward priority 100; udp dport 8080 counter name forwarded; }
	}`, "nft", "-f", "-")
	opened := 0
	err := c.client.Do(func() error {
		if err := lab.AddLocal(flowSources); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := &unix.SockaddrInet4{Port: 80, Addr: crossCluster[0].As4()}
		control := make([]byte, unix.CmsgSpace(unix.SizeofInet4Pktinfo))
		header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		header.Level, header.Type = unix.IPPROTO_IP, unix.IP_PKTINFO
		header.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
		source := (*unix.Inet4Pktinfo)(unsafe.Pointer(&control[unix.CmsgLen(0)]))
		for began := time.Now(); time.Since(began) < during; time.Sleep(time.Millisecond) {
			// At most what is due now: a slow machine does not reach every rate.
			for due := int(time.Since(began).Seconds() * float64(rate)); opened < due; opened++ {
				source.Spec_dst = lab.After(flowSources.Addr(), opened).As4()
				if err := unix.Sendmsg(fd, []byte("?"), control, to, 0); err != nil && !errors.Is(err, unix.ENOBUFS) {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return forwarded(t)
}

// forwarded is how many of the datagrams of openFlows have been forwarded so far. On a busy machine some come later.
func forwarded(t *testing.T) int {
	t.Helper()
	listed := lab.Run(t, "", "nft", "list", "counter", "inet", "opened", "forwarded")
	found := regexp.MustCompile(`packets (\d+)`).FindStringSubmatch(listed)
	if found == nil {
		t.Fatal(listed)
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// refused is how many connections the kernel could not enter into its table, and whose datagram it dropped after it had
// been forwarded: the search for a free port to masquerade with is bounded, and fails at times when most ports are
// taken.
func refused(t *testing.T) (n int) {
	t.Helper()
	counts := lab.Run(t, "", "conntrack", "-S") // a line for each CPU
	for _, found := range regexp.MustCompile(`insert_failed=(\d+)`).FindAllStringSubmatch(counts, -1) {
		of, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		n += of
	}
	return n
}

// awaitFlows ends all connections and waits until each one that was opened has been counted, or counted as lost.
func awaitFlows(t *testing.T) (opened, counted, lost int) {
	t.Helper()
	lab.Eventually(t, "all connections have been counted", func() bool {
		endFlows(t, tracker.UDP) // the kernel may take a minute
		counted, lost = int(scrapeFlows(t).ended), int(flowState(t).LostConnections)
		failed := refused(t)
		if opened = forwarded(t) - failed; counted+lost > opened {
			t.Fatalf("%d were opened, %d counted, %d lost", opened, counted, lost)
		}
		return counted > 0 && counted+lost == opened
	})
	return opened, counted, lost
}

// TestFlowRate opens connections at a rate, each of one datagram from an address of its own, and holds the flow metrics
// against their number: every one was counted, or counted as lost.
func TestFlowRate(t *testing.T) {
	c := newCrossing(t)
	c.publish(t, nil, corev1.ProtocolUDP, nil, endpointState{0, ""})
	proxy := c.start(t, "--flow-metrics", "--metrics-bind-address", "127.0.0.1:10249")
	lab.Eventually(t, "the kernel counts", func() bool { return flowState(t).Problem == "" && accounting(t) == 2 })
	lab.Sysctl(t, "net.netfilter.nf_conntrack_udp_timeout", "2")
	c.disturb(t, "udp dport 8080 drop") // no answers, so the load is that of the node alone
	began, worked := time.Now(), cpuTime(t, proxy.PID())
	c.openFlows(t, *flowRate, *flowFor)
	took := time.Since(began)
	opened, _, lost := awaitFlows(t)
	cpu := cpuTime(t, proxy.PID()) - worked
	// One datagram of one byte each.
	if counts := scrapeFlows(t); counts.bytes.sent != 29*counts.ended {
		t.Errorf("%v bytes of %v connections", counts.bytes.sent, counts.ended)
	}
	t.Logf("%.0f connections a second: %d, lost %d (%.2f %%); the daemon worked %s, %.1f µs for each",
		float64(opened)/took.Seconds(), opened, lost, 100*float64(lost)/float64(opened), cpu,
		float64(cpu.Microseconds())/float64(opened))
}

// cpuTime is how long a process has worked.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest) // from the third on, see proc_pid_stat(5)
	const ticks = 100              // of a second: USER_HZ
	var sum int
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks
}

// TestFlowFlood ends tens of thousands of connections while the daemon does not run, which is more than waits to be
// read: what could not be counted is counted as lost, and shown.
func TestFlowFlood(t *testing.T) {
	c := newCrossing(t)
	c.publish(t, nil, corev1.ProtocolUDP, nil, endpointState{0, ""})
	proxy := c.start(t, "--flow-metrics", "--metrics-bind-address", "127.0.0.1:10249")
	lab.Eventually(t, "the kernel counts", func() bool { return flowState(t).Problem == "" && accounting(t) == 2 })
	lab.Sysctl(t, "net.netfilter.nf_conntrack_udp_timeout", "300")
	c.disturb(t, "udp dport 8080 drop")
	many := c.openFlows(t, 20_000, 3*time.Second)
	if err := proxy.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	out, err := lab.Execute("conntrack", "-F")
	if err = errors.Join(err, proxy.Signal(unix.SIGCONT)); err != nil || out.Code != 0 {
		t.Fatalf("%v\n%s", err, out.Stderr)
	}
	opened, counted, lost := awaitFlows(t)
	const waits = 40_000 // a slow machine may open fewer, which all wait to be read
	if lost == 0 && many > waits {
		t.Errorf("%d were opened, %d counted, %d lost", opened, counted, lost)
	}
	text := strings.Join(strings.Fields(runProxy(t, "status").Stdout), " ")
	lost = int(flowState(t).LostConnections)
	want := fmt.Sprintf("lost %d connections ended and are missing", lost)
	if strings.Contains(text, want) != (lost > 0) {
		t.Errorf("status does not say %q\n%s", want, text)
	}
	t.Logf("%d ended at once, %d were lost", opened, lost)
}
