package flows

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestLastingConnectionInKernel: a connection counts while it lasts, and at its end all that the kernel has counted.
func TestLastingConnectionInKernel(t *testing.T) {
	lab.New(t)
	endpoint := netip.MustParseAddrPort("10.244.0.5:8080")
	lab.Run(t, `table ip test {
		chain output { type nat hook output priority -101; ip daddr 10.96.0.80 tcp dport 80 dnat to 10.244.0.5:8080; }
	}`, "nft", "-f", "-")
	for _, addr := range []string{"192.0.2.1/32", "10.244.0.5/32"} {
		lab.Run(t, "", "ip", "address", "add", addr, "dev", "lo")
	}
	lab.Run(t, "", "ip", "route", "add", cluster.Address.String(), "dev", "lo")
	for _, err := range errorsOf(conntrack.Account("/proc/sys")) {
		t.Fatal(err)
	}
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(endpoint))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	lab.Serve(listener, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	table, endings := lab.Open(t, conntrack.Open), lab.Open(t, func() (*conntrack.Endings, error) {
		return conntrack.Listen(1 << 20)
	})
	c := newCounter()
	c.setBegan(time.Now())
	conn, err := net.Dial("tcp", netip.AddrPortFrom(cluster.Address, cluster.Port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const size = 1 << 20
	exchange := func() {
		t.Helper()
		_ = conn.SetDeadline(time.Now().Add(lab.Patience))
		go func() { _, _ = conn.Write(make([]byte, size)) }()
		if _, err := io.ReadFull(conn, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	for n := uint64(1); n <= 3; n++ {
		exchange()
		if complete, err := c.look(t.Context(), table, time.Now()); err != nil || !complete {
			t.Fatalf("%v, %v", complete, err)
		}
		u := c.usages[web]
		if u == nil || u.Sent.Bytes < n*size || u.Returned.Bytes < n*size || u.Ended != 0 {
			t.Fatalf("after %d MiB: %+v", n, u)
		}
	}
	exchange()
	_ = conn.Close()
	flows, err := table.Flows(t.Context(), conntrack.Filter{Family: tracker.IPv4, Has: conntrack.DestinationNAT}, nil)
	if err != nil || len(flows) != 1 {
		t.Fatalf("%v, %v", flows, err)
	}
	if _, err := table.Delete(t.Context(), flows, nil); err != nil {
		t.Fatal(err)
	}
	_ = endings.SetDeadline(time.Now().Add(lab.Patience))
	var last conntrack.Flow
	if err := endings.Next(func(f *conntrack.Flow) {
		last = *f
		c.end(f, time.Now())
	}); err != nil {
		t.Fatal(err)
	}
	if u := c.usages[web]; u.Sent != last.Sent || u.Returned != last.Returned || u.Ended != 1 || u.Sent.Bytes < 4*size {
		t.Errorf("counted %+v and %+v, the kernel %+v and %+v", u.Sent, u.Returned, last.Sent, last.Returned)
	}
	if len(c.live) != 0 {
		t.Error("it still lasts")
	}
}

func errorsOf(list []conntrack.Sysctl) (errs []error) {
	for _, s := range list {
		if s.Err != nil {
			errs = append(errs, s.Err)
		}
	}
	return errs
}

// BenchmarkEnd is what the end of a connection costs, without its message.
func BenchmarkEnd(b *testing.B) {
	c := newCounter()
	f := ended(connectionTo(cluster, 1, time.Second, 1000, 1000), time.Second)
	b.ReportAllocs()
	for b.Loop() {
		f.ID++
		c.end(f, start)
	}
}

// BenchmarkLook is what a look costs for each connection that lasts, without its message.
func BenchmarkLook(b *testing.B) {
	c := newCounter()
	const many = 100_000
	list := make([]*conntrack.Flow, many)
	for i := range list {
		list[i] = connectionTo(cluster, uint32(i), time.Second, 1000, 1000)
	}
	c.lookAt(start, list...)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += many {
		c.lookAt(start, list...)
	}
}
