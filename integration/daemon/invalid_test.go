package daemon

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestInvalidSegments: a segment beyond the TCP window is not translated and ends the connection, unless the rules of
// docs/firewalls.md or the sysctl that --conntrack-tcp-be-liberal sets prevent it.
func TestInvalidSegments(t *testing.T) {
	page, err := os.ReadFile(lab.Path(t, "docs/firewalls.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?ms)^(table inet invalid \{.*?^\})$`).FindSubmatch(page)
	if found == nil {
		t.Fatal("docs/firewalls.md has no table inet invalid")
	}
	recipe := strings.ReplaceAll(string(found[1]), "cali*", "pods")
	for _, tt := range []struct {
		name, sysctl, rules string
		lives               bool
	}{
		{"nothing", "0", "", false}, {"the page's rules", "0", recipe, true}, {"liberal", "1", "", true},
	} {
		for source, cluster := range map[string]string{"masqueraded": "10.244.0.0/16", "kept": "192.168.0.0/24"} {
			t.Run(tt.name+", "+source, func(t *testing.T) {
				client, pods := forwardingNode(t, cluster)
				lab.Run(t, tt.rules, "nft", "-f", "-")
				lab.Run(t, "", "sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_be_liberal="+tt.sysctl)
				listener := listenIn(t, pods)
				var asks net.Conn
				if err := client.Do(func() (err error) {
					asks, err = net.DialTimeout("tcp4", "10.96.0.80:80", lab.Patience)
					return err
				}); err != nil {
					t.Fatal(err)
				}
				defer asks.Close()
				answers, err := listener.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer answers.Close()
				if kept := answers.RemoteAddr().(*net.TCPAddr).IP.String() == "192.168.0.9"; kept != (source == "kept") {
					t.Fatalf("the pod sees the client as %s", answers.RemoteAddr())
				}
				if err := bothWays(asks, answers); err != nil {
					t.Fatal(err)
				}
				if err := pods.Do(func() error { return sendBeyondWindow(answers.(*net.TCPConn)) }); err != nil {
					t.Fatal(err)
				}
				if !tt.lives {
					lab.Eventually(t, "a reset", func() bool { return bothWays(asks, answers) != nil })
					return
				}
				for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
					if err := bothWays(asks, answers); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// bothWays sends a byte in each direction.
func bothWays(a, b net.Conn) error {
	for range 2 {
		_, writeErr := a.Write([]byte("x"))
		_, readErr := b.Read(make([]byte, 1))
		if err := errors.Join(writeErr, readErr); err != nil {
			return err
		}
		a, b = b, a
	}
	return nil
}

// sendBeyondWindow sends a segment of a connection whose sequence number is 40 MB ahead, past the connection's socket.
func sendBeyondWindow(conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var queueErr error
	var next [2]uint32 // to send, to receive
	err = raw.Control(func(fd uintptr) {
		set := func(option, value int) {
			queueErr = errors.Join(queueErr, unix.SetsockoptInt(int(fd), unix.SOL_TCP, option, value))
		}
		set(unix.TCP_REPAIR, 1) // a socket tells its numbers only so
		for i, queue := range []int{2, 1} {
			set(unix.TCP_REPAIR_QUEUE, queue) // TCP_SEND_QUEUE, TCP_RECV_QUEUE of include/uapi/linux/tcp.h
			number, err := unix.GetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_QUEUE_SEQ)
			next[i], queueErr = uint32(number), errors.Join(queueErr, err)
		}
		set(unix.TCP_REPAIR, -1) // off, without a window probe
	})
	if err := errors.Join(err, queueErr); err != nil {
		return err
	}
	from, to := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr)
	segment := binary.BigEndian.AppendUint16(nil, uint16(from.Port))
	segment = binary.BigEndian.AppendUint16(segment, uint16(to.Port))
	segment = binary.BigEndian.AppendUint32(segment, next[0]+40_000_000)
	segment = binary.BigEndian.AppendUint32(segment, next[1])
	segment = append(segment, 5<<4, 0x18, 1, 0, 0, 0, 0, 0, 'x', 'x') // PSH and ACK, a window of 256 bytes
	pseudo := []byte{0, unix.IPPROTO_TCP, 0, byte(len(segment))}      // the header that the checksum covers as well
	var sum uint32
	for words := slices.Concat(from.IP.To4(), to.IP.To4(), pseudo, segment); len(words) > 0; words = words[2:] {
		sum += uint32(binary.BigEndian.Uint16(words))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(segment[16:], ^uint16(sum+sum>>16))
	socket, err := net.ListenPacket("ip4:tcp", from.IP.String())
	if err != nil {
		return err
	}
	_, err = socket.WriteTo(segment, &net.IPAddr{IP: to.IP})
	return errors.Join(err, socket.Close())
}
