package conntrack

import (
	"errors"
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/tracker"
)

// groupDestroy is NFNLGRP_CONNTRACK_DESTROY of linux/netfilter/nfnetlink.h: an entry has left the table.
const groupDestroy = 3

// Endings reports the connections whose destination was translated and that ended: the kernel removed their
// entry. The kernel drops the events of all others before they take room in the socket's buffer. An Endings
// belongs to one goroutine.
//
// The kernel keeps what is needed for an event with each entry. It does so only for entries made while
// a program listens, if net.netfilter.nf_conntrack_events is 2, its default since Linux 5.19. Connections that
// were there before Listen therefore may end without an event.
type Endings struct {
	conn     *netlink.Conn
	raw      syscall.RawConn
	buffer   []byte
	flow     Flow // what Next hands out: one is enough
	timeouts timeouts
	dropped  uint32 // the kernel's count at the last call of Lost
}

// Listen starts to listen in the network namespace of the calling thread; buffer is how many bytes of events may
// wait for Next, as the kernel counts them: about 1 KiB for each connection. It needs CAP_NET_ADMIN.
func Listen(buffer int) (e *Endings, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("listen to conntrack: %w", err)
		}
	}()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: receiveBuffer})
	if err != nil {
		return nil, err
	}
	// After an overrun the kernel would otherwise drop everything until the buffer is empty. Lost asks for
	// the count, which is exact.
	err = errors.Join(conn.SetBPF(translatedOnly()), conn.SetReadBuffer(buffer),
		conn.SetOption(netlink.NoENOBUFS, true))
	if err == nil {
		err = conn.JoinGroup(groupDestroy) // last: nothing comes before the filter
	}
	raw, rawErr := conn.SyscallConn()
	if err = errors.Join(err, rawErr); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Endings{conn: conn, raw: raw, buffer: make([]byte, receiveBuffer), timeouts: readTimeouts("/proc/sys")}, nil
}

// translatedOnly returns the filter: accept a message if its CTA_STATUS has IPS_DST_NAT.
func translatedOnly() []bpf.RawInstruction {
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadConstant{Dst: bpf.RegA, Val: attr.MessageHeader + attr.NetfilterHeader},
		bpf.LoadConstant{Dst: bpf.RegX, Val: ctaStatus},
		bpf.LoadExtension{Num: bpf.ExtNetlinkAttr}, // A: where attribute X is, searched from A on; 0 if there is none
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 3},
		bpf.TAX{},
		bpf.LoadIndirect{Off: attr.Header, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: uint32(DestinationNAT), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: ^uint32(0)},
	})
	if err != nil {
		panic(err) // the program is a constant
	}
	return program
}

// SetDeadline ends a waiting Next, and all that follow, with os.ErrDeadlineExceeded at the given time; the zero
// time is never. Unlike the other methods it may be called at any time.
func (e *Endings) SetDeadline(t time.Time) error { return e.conn.SetReadDeadline(t) }

// mostAtOnce is how many messages one call of Next reads, each with one connection: some milliseconds of work.
const mostAtOnce = 4096

// Next waits for events, reads those that have come, and calls visit for the connection of each. The flow is valid
// during the call only.
func (e *Endings) Next(visit func(*Flow)) error {
	messages := 0
	var failed error
	err := e.raw.Read(func(fd uintptr) (done bool) {
		for messages < mostAtOnce {
			n, err := unix.Read(int(fd), e.buffer)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EAGAIN):
				return messages > 0
			case err == nil:
				messages++
				err = e.read(e.buffer[:n], visit)
			}
			if err != nil {
				failed = err
				return true
			}
		}
		return true
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("listen to conntrack: %w", err)
	}
	return nil
}

// read calls visit for each connection in a datagram.
func (e *Endings) read(data []byte, visit func(*Flow)) (err error) {
	attr.Replies(data, func(message attr.Reply) {
		if netlink.HeaderType(message.Type) != typeDelete || err != nil {
			return
		}
		if e.flow, err = decode(message.Body); err == nil {
			e.flow.Idle = e.timeouts.idle(&e.flow)
			visit(&e.flow)
		}
	})
	return err
}

// Lost returns how many connections ended since the last call of Lost whose event the kernel dropped, because
// the buffer was full.
func (e *Endings) Lost() (uint64, error) {
	var memory [9]uint32 // SK_MEMINFO_VARS of linux/sock_diag.h
	const drops = 8      // SK_MEMINFO_DROPS
	size := uint32(unsafe.Sizeof(memory))
	var errno unix.Errno
	err := e.raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&memory)), uintptr(unsafe.Pointer(&size)), 0)
	})
	if err == nil && errno != 0 {
		err = errno
	}
	if err != nil {
		return 0, fmt.Errorf("count lost conntrack events: %w", err)
	}
	lost := memory[drops] - e.dropped // wraps as the kernel's does
	e.dropped = memory[drops]
	return uint64(lost), nil
}

// Close stops listening.
func (e *Endings) Close() error { return e.conn.Close() }

// timeouts say how long an entry stays after its last packet. The kernel removes an entry when the timeout of its
// state is over, which for TCP is two minutes after the end of the connection.
type timeouts struct {
	tcp         [9]time.Duration // by state
	udp, stream time.Duration
}

// readTimeouts leaves out what cannot be read.
func readTimeouts(root string) (t timeouts) {
	read := func(name string) time.Duration {
		n, _ := readSysctl(root, "net.netfilter.nf_conntrack_"+name)
		return time.Duration(n) * time.Second
	}
	// The states in the order of enum tcp_conntrack; 0 is none.
	for i, name := range []string{"syn_sent", "syn_recv", "established", "fin_wait", "close_wait", "last_ack", "time_wait",
		"close"} {
		t.tcp[i+1] = read("tcp_timeout_" + name)
	}
	t.udp, t.stream = read("udp_timeout"), read("udp_timeout_stream")
	return t
}

// idle returns for how long no packet had come when the kernel removed a flow; 0 if that is not known, as for SCTP
// and on kernels that do not send the last state of TCP.
func (t *timeouts) idle(f *Flow) time.Duration {
	existed := f.existed()
	var timeout time.Duration
	switch {
	case f.Original.Protocol == tracker.TCP && int(f.TCPState) < len(t.tcp):
		timeout = t.tcp[f.TCPState]
		if f.TCPState >= finWait { // a new connection with the same ports removes the entry early
			return min(timeout, existed)
		}
	case f.Original.Protocol == tracker.UDP && f.Status&Assured != 0:
		timeout = t.stream
	case f.Original.Protocol == tracker.UDP:
		timeout = t.udp
	}
	if timeout > existed { // removed by a program
		return 0
	}
	return timeout
}
