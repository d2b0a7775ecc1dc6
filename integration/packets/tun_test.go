package packets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// tunQueue is how many packets a TUN device holds until the bench reads them: several
// times what one flow of the largest case sends.
const tunQueue = 8192

// longestPacket bounds what the bench reads, in bytes: the largest IPv4 packet.
const longestPacket = 65535

// A tun is a TUN device: what the bench writes arrives at the node as received packets,
// what the node sends through it the bench reads. The kernel handles a written packet
// before write returns, the forwarding included. For this the device has no queueing discipline: while the kernel
// sends a packet of its own, such as an MLD report, others would wait in its queue.
type tun struct {
	name string
	fd   int
}

// newTUN makes a TUN device in the current namespace and sets it up.
func newTUN(t testing.TB, name string) *tun {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		lab.SkipOrFail(t, "open /dev/net/tun: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := attachTUN(fd, name); err != nil {
		lab.SkipOrFail(t, "make TUN device %s: %v", name, err)
	}
	link, err := netlink.LinkByName(name)
	if err == nil {
		noQueue := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT}
		err = errors.Join(netlink.LinkSetTxQLen(link, tunQueue), netlink.LinkSetUp(link),
			netlink.QdiscReplace(&netlink.GenericQdisc{QdiscAttrs: noQueue, QdiscType: "noqueue"}))
	}
	if err != nil {
		t.Fatalf("set up TUN device %s: %v", name, err)
	}
	return &tun{name: name, fd: fd}
}

// attachTUN makes fd the other end of a TUN device of bare IP packets.
func attachTUN(fd int, name string) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
}

// write makes a packet arrive at the node through the device.
func (d *tun) write(b []byte) error {
	if _, err := unix.Write(d.fd, b); err != nil {
		return fmt.Errorf("write to %s: %w", d.name, err)
	}
	return nil
}

// A capture reads everything that leaves the node through its TUN devices or travels
// within it over the loopback device.
type capture struct {
	tuns     []*tun
	loopback int
	buf      []byte
}

// newCapture starts to capture in the current namespace.
func newCapture(t testing.TB, tuns ...*tun) *capture {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open packet socket: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)
	}
	if err == nil {
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: lo.Attrs().Index})
	}
	if err != nil {
		t.Fatalf("capture on the loopback device: %v", err)
	}
	return &capture{tuns: tuns, loopback: fd, buf: make([]byte, longestPacket)}
}

// wait returns when there is something to read, or after the timeout.
func (c *capture) wait(timeout time.Duration) error {
	fds := []unix.PollFd{{Fd: int32(c.loopback), Events: unix.POLLIN}}
	for _, d := range c.tuns {
		fds = append(fds, unix.PollFd{Fd: int32(d.fd), Events: unix.POLLIN})
	}
	if _, err := unix.Poll(fds, int(timeout.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
		return os.NewSyscallError("poll", err)
	}
	return nil
}

// drain returns the packets that have been captured since it was called last.
func (c *capture) drain() ([]packet, error) {
	packets, err := c.read(nil, c.loopback, nil)
	for _, d := range c.tuns {
		if err == nil {
			packets, err = c.read(packets, d.fd, d)
		}
	}
	return packets, err
}

// read appends to packets what can be read from fd without waiting.
func (c *capture) read(packets []packet, fd int, device *tun) ([]packet, error) {
	for {
		n, err := unix.Read(fd, c.buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return packets, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return packets, os.NewSyscallError("read captured packets", err)
		}
		if p, ok := parsePacket(c.buf[:n]); ok {
			p.device = device
			packets = append(packets, p)
		}
	}
}
