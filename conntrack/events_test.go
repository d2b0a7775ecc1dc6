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
