package conntrack

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/tracker"
)

// threadTime is how long this thread has worked, the kernel's work for its packets included.
func threadTime(b *testing.B) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		b.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// A meter sends datagrams to a translated address of its namespace, with the kernel's accounting and without, in turns
// of one run, and knows how long each has taken.
type meter struct {
	*testing.B
	worked map[bool]time.Duration // with accounting, without
}

var metered = &unix.SockaddrInet4{Port: 53, Addr: [4]byte{10, 96, 0, 10}}

func newMeter(b *testing.B) *meter {
	lab.New(b)
	lab.Run(b, `table ip test {
		chain output { type nat hook output priority -101; ip daddr 10.96.0.10 udp dport 53 dnat to 10.244.0.5:5353; }
	}`, "nft", "-f", "-")
	for _, addr := range []string{"192.0.2.1/32", "10.244.0.5/32"} {
		lab.Run(b, "", "ip", "address", "add", addr, "dev", "lo")
	}
	lab.Run(b, "", "ip", "route", "add", "10.96.0.10", "dev", "lo", "src", "192.0.2.1")
	if err := lab.AddLocal(netip.MustParsePrefix("10.128.0.0/9")); err != nil {
		b.Fatal(err)
	}
	server, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.244.0.5:5353")))
	if err != nil {
		b.Fatal(err)
	}
	_ = server.SetReadBuffer(1) // the kernel drops there what comes
	b.Cleanup(func() { _ = server.Close() })
	return &meter{B: b, worked: make(map[bool]time.Duration)}
}

// account switches the accounting of new flows on or off.
func (m *meter) account(on bool) {
	value := map[bool]string{true: "1", false: "0"}[on]
	lab.Sysctl(m, "net.netfilter.nf_conntrack_acct", value)
	lab.Sysctl(m, "net.netfilter.nf_conntrack_timestamp", value)
}

func (m *meter) socket() int {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func (m *meter) report(done int, unit string) {
	m.ReportMetric(0, "ns/op")
	m.ReportMetric(float64(m.worked[false])/float64(done), "ns/"+unit)
	m.ReportMetric(float64(m.worked[true])/float64(done), "ns/accounted-"+unit)
}

// BenchmarkAccountedPacket is what a packet of a flow that lasts costs the node.
func BenchmarkAccountedPacket(b *testing.B) {
	m := newMeter(b)
	const turn = 1000
	sockets := make(map[bool]int)
	for _, on := range []bool{false, true} {
		m.account(on)
		sockets[on] = m.socket()
		if err := unix.Connect(sockets[on], metered); err != nil {
			b.Fatal(err)
		}
		_, _ = unix.Write(sockets[on], []byte("?"))
	}
	packets := 0
	for ; packets < b.N; packets += turn {
		for _, on := range []bool{false, true} {
			began := threadTime(b)
			for range turn {
				_, _ = unix.Write(sockets[on], []byte("?"))
			}
			m.worked[on] += threadTime(b) - began
		}
	}
	m.report(packets, "packet")
	flows, err := lab.Open(b, Open).Flows(b.Context(), Filter{Family: tracker.IPv4, Has: DestinationNAT}, nil)
	if err != nil || len(flows) != 2 || (flows[0].Sent.Packets > 0) == (flows[1].Sent.Packets > 0) {
		b.Errorf("one of two flows should be counted: %v, %v", flows, err)
	}
}

// BenchmarkAccountedConnection is what a flow of one datagram costs the node, from its first packet until it is
// removed; beside the accounting with the message of its end.
func BenchmarkAccountedConnection(b *testing.B) {
	m := newMeter(b)
	const turn = 5000
	table, fd := lab.Open(b, Open), m.socket()
	control := make([]byte, unix.CmsgSpace(unix.SizeofInet4Pktinfo))
	header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	header.Level, header.Type = unix.IPPROTO_IP, unix.IP_PKTINFO
	header.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
	source := (*unix.Inet4Pktinfo)(unsafe.Pointer(&control[unix.CmsgLen(0)]))
	var everything attr.Writer
	everything.Netfilter(tracker.IPv4, 0)
	remove := netlink.Message{Header: netlink.Header{Type: typeDelete, Flags: netlink.Request | netlink.Acknowledge},
		Data: everything.Buf}
	connections := 0
	for ; connections < b.N; connections += turn {
		for _, on := range []bool{false, true} {
			m.account(on)
			listener := io.Closer(io.NopCloser(nil))
			if on {
				var err error
				if listener, err = Listen(2 * turn << 10); err != nil {
					b.Fatal(err)
				}
			}
			began := threadTime(b)
			for i := range turn {
				source.Spec_dst = lab.After(netip.MustParseAddr("10.128.0.1"), i).As4()
				_ = unix.Sendmsg(fd, []byte("?"), control, metered, 0)
			}
			if _, err := table.conn.Execute(remove); err != nil {
				b.Fatal(err)
			}
			m.worked[on] += threadTime(b) - began
			_ = listener.Close()
		}
	}
	m.report(connections, "connection")
}
