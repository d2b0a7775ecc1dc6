package conntrack

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/netlink"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/tracker"
)

func startListening(tb testing.TB, buffer int) *Endings {
	tb.Helper()
	return lab.Open(tb, func() (*Endings, error) { return Listen(buffer) })
}

// drain returns what has ended by now. The kernel broadcasts before it answers a deletion.
func drain(tb testing.TB, e *Endings) (flows []Flow) {
	tb.Helper()
	for {
		_ = e.SetDeadline(time.Now().Add(100 * time.Millisecond))
		err := e.Next(func(flow *Flow) { flows = append(flows, *flow) })
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return flows
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// flush removes every entry of the namespace.
func flush(tb testing.TB, table *Table) {
	tb.Helper()
	conn, err := table.ready()
	if err != nil {
		tb.Fatal(err)
	}
	var w attr.Writer
	w.Netfilter(0, 0)
	if _, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: typeDelete, Flags: netlink.Request | netlink.Acknowledge}, Data: w.Buf,
	}); err != nil {
		tb.Fatal(err)
	}
}

// TestEndingsAreTranslated checks that the kernel sends the news of translated flows alone.
func TestEndingsAreTranslated(t *testing.T) {
	lab.New(t)
	table, endings := openTable(t), startListening(t, 1<<20)
	create(t, table, mixed()...)
	flush(t, table)
	var got, want []string
	for _, flow := range drain(t, endings) {
		got = append(got, fmt.Sprint(flow.Original, flow.Endpoint()))
	}
	for _, flow := range mixed() {
		if flow.Translated() {
			want = append(want, fmt.Sprint(flow.Original, flow.Endpoint()))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if lost, err := endings.Lost(); lost != 0 || err != nil {
		t.Errorf("lost %d, %v", lost, err)
	}
}

// TestLostEndingsAreCounted fills the buffer: what came and what was lost are all that ended, and untranslated flows
// count as neither.
func TestLostEndingsAreCounted(t *testing.T) {
	lab.New(t)
	const n = 2000
	table, endings := openTable(t), startListening(t, 64<<10)
	var flows []Flow
	for port := range n {
		client := fmt.Sprintf("192.0.2.1:%d", 1000+port)
		flows = append(flows, flow(tracker.UDP, client, "10.96.0.10:53", "10.244.0.5:5353", established),
			flow(tracker.UDP, client, "10.96.0.11:53", "10.96.0.11:53", 0))
	}
	for round := range 2 {
		create(t, table, flows...)
		flush(t, table)
		came := len(drain(t, endings))
		lost, err := endings.Lost()
		if err != nil {
			t.Fatal(err)
		}
		if came == 0 || lost == 0 || came+int(lost) != n {
			t.Errorf("round %d: %d came and %d were lost of %d", round, came, lost, n)
		}
	}
}

// TestEndingsCount holds the kernel's counters against what a client and a server exchanged.
func TestEndingsCount(t *testing.T) {
	const udpHeader = 8
	for _, p := range paths {
		t.Run(p.family, func(t *testing.T) {
			p.lay(t)
			lab.Sysctl(t, "net.netfilter.nf_conntrack_acct", "1")
			lab.Sysctl(t, "net.netfilter.nf_conntrack_timestamp", "1")
			ipHeader := 20
			if p.client.Is6() {
				ipHeader = 40
			}
			table, endings := openTable(t), startListening(t, 1<<20)
			p.translate(t, p.endpoints[0])
			serve(t, p.endpoints[0])
			conn := p.dialUDP(t)
			sent, returned := counted{header: ipHeader + udpHeader}, counted{header: ipHeader + udpHeader}
			for range 10 {
				sent.add(exchangeBytes(t, conn, &returned))
			}
			flush(t, table)
			flows := drain(t, endings)
			if len(flows) != 1 {
				t.Fatalf("%d flows ended: %+v", len(flows), flows)
			}
			f := flows[0]
			if f.Original.Destination != p.clusterIP || f.Endpoint() != p.endpoints[0] {
				t.Errorf("got %s to %s", f.Original, f.Endpoint())
			}
			if f.Sent != sent.Counter || f.Returned != returned.Counter {
				t.Errorf("the kernel counted %+v and %+v, the sockets %+v and %+v", f.Sent, f.Returned, sent.Counter,
					returned.Counter)
			}
			if d := f.Duration(); d <= 0 || d > lab.Patience {
				t.Errorf("it lasted %s", d)
			}
		})
	}
}

// counted counts datagrams as the kernel does.
type counted struct {
	Counter
	header int
}

func (c *counted) add(payload int) {
	c.Packets++
	c.Bytes += uint64(payload + c.header)
}

// exchangeBytes sends one datagram and waits for its answer; it returns the length of what it sent.
func exchangeBytes(t *testing.T, conn *net.UDPConn, returned *counted) int {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(lab.Patience))
	n, err := conn.Write([]byte("0123456789"))
	if err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 64)
	answer, err := conn.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	returned.add(answer)
	return n
}

// TestEndingsDuration: a TCP connection lasts until its last packet, not until the kernel removes the entry.
func TestEndingsDuration(t *testing.T) {
	p := paths[0]
	p.lay(t)
	lab.Sysctl(t, "net.netfilter.nf_conntrack_timestamp", "1")
	lab.Sysctl(t, "net.netfilter.nf_conntrack_tcp_timeout_time_wait", "3")
	p.translate(t, p.endpoints[0])
	listener, err := net.Listen("tcp", p.endpoints[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	lab.Serve(listener, func(net.Conn) {})
	endings := startListening(t, 1<<20)
	began := time.Now()
	conn, err := net.Dial("tcp", p.clusterIP.String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Fatal("the server sent something")
	}
	_ = conn.Close()
	// The next packet of any connection may find the entry expired; without one the kernel takes up to a minute.
	var f Flow
	for ended := false; !ended; {
		if time.Since(began) > lab.Patience {
			t.Fatal("the entry stays")
		}
		table := openTable(t)
		if _, err := table.Flows(t.Context(), Filter{Family: tracker.IPv4}, nil); err != nil {
			t.Fatal(err)
		}
		_ = endings.SetDeadline(time.Now().Add(100 * time.Millisecond))
		err := endings.Next(func(flow *Flow) { f, ended = *flow, true })
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
	if f.TCPState == 0 {
		t.Skip("this kernel does not send the last state")
	}
	const ticks = 100 * time.Millisecond // the kernel rounds to its ticks
	if d := f.Duration(); d < 0 || f.Idle < 3*time.Second-ticks || f.Idle > 3*time.Second || d != f.existed()-f.Idle {
		t.Errorf("there was an entry for %s, idle for %s, and the connection lasted %s", f.existed(), f.Idle, d)
	}
}

// TestIdle: how long nothing had come, by state.
func TestIdle(t *testing.T) {
	all := timeouts{udp: 30 * time.Second, stream: 2 * time.Minute}
	for i := range all.tcp {
		all.tcp[i] = time.Duration(i) * time.Minute
	}
	for _, tt := range []struct {
		name     string
		protocol tracker.Protocol
		state    TCPState
		status   Status
		existed  time.Duration
		want     time.Duration
	}{
		{"closed", tracker.TCP, 7, 0, 8 * time.Minute, 7 * time.Minute},
		{"ports used again", tracker.TCP, 7, 0, time.Minute, time.Minute},
		{"expired", tracker.TCP, 3, 0, time.Hour, 3 * time.Minute},
		{"deleted", tracker.TCP, 3, 0, time.Minute, 0},
		{"a state that is not sent", tracker.TCP, 0, 0, time.Hour, 0},
		{"a state of another kernel", tracker.TCP, 200, 0, time.Hour, 0},
		{"UDP", tracker.UDP, 0, SeenReply, time.Minute, 30 * time.Second},
		{"UDP, a stream", tracker.UDP, 0, SeenReply | Assured, time.Hour, 2 * time.Minute},
		{"UDP, deleted", tracker.UDP, 0, SeenReply, time.Second, 0},
		{"SCTP", tracker.SCTP, 3, 0, time.Hour, 0},
	} {
		f := Flow{Original: Tuple{Protocol: tt.protocol}, TCPState: tt.state, Status: tt.status, Started: 1,
			Stopped: 1 + uint64(tt.existed)}
		if got := all.idle(&f); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
