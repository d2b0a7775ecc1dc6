package conntrack

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// groupDestroy is NFNLGRP_CONNTRACK_DESTROY of linux/netfilter/nfnetlink.h: an entry has left the table.
const groupDestroy = 3

// Where things are in a message: struct nlmsghdr, then struct nfgenmsg, then attributes.
const (
	attributesAt    = unix.SizeofNlMsghdr + 4
	attributeHeader = 4
)

// Endings reports the connections whose destination was translated and that ended: the kernel removed their
// entry. The kernel drops the news of all others before they take room in the socket's buffer. An Endings
// belongs to one goroutine.
//
// The kernel keeps what is needed for the news with each entry. It does so only for entries made while
// somebody listens, if net.netfilter.nf_conntrack_events is 2, its default since Linux 5.19. Connections that
// were there before Listen therefore may end without news.
type Endings struct {
	conn    *netlink.Conn
	dropped uint32 // the kernel's count at the last call of Lost
}

// Listen starts to listen in the network namespace of the calling thread; buffer is how many bytes of news may
// wait for Next, as the kernel counts them: about 1 KiB for each connection. It needs CAP_NET_ADMIN.
func Listen(buffer int) (*Endings, error) {
	e, err := listen(buffer)
	if err != nil {
		return nil, fmt.Errorf("listen to conntrack: %w", err)
	}
	return e, nil
}

func listen(buffer int) (*Endings, error) {
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
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Endings{conn: conn}, nil
}

// translatedOnly returns the filter: accept a message if its CTA_STATUS has IPS_DST_NAT.
func translatedOnly() []bpf.RawInstruction {
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadConstant{Dst: bpf.RegA, Val: attributesAt},
		bpf.LoadConstant{Dst: bpf.RegX, Val: ctaStatus},
		bpf.LoadExtension{Num: bpf.ExtNetlinkAttr}, // A: where attribute X is, searched from A on; 0 if there is none
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 3},
		bpf.TAX{},
		bpf.LoadIndirect{Off: attributeHeader, Size: 4},
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

// Next waits for news and calls visit for each connection in it. The flow is valid during the call only.
func (e *Endings) Next(visit func(*Flow)) error {
	messages, err := e.conn.Receive()
	if err != nil {
		return fmt.Errorf("listen to conntrack: %w", err)
	}
	for _, message := range messages {
		if message.Header.Type != typeDelete {
			continue
		}
		flow, err := decode(message.Data)
		if err != nil {
			return fmt.Errorf("listen to conntrack: %w", err)
		}
		visit(&flow)
	}
	return nil
}

// Lost returns how many connections ended since the last call of Lost whose news the kernel dropped, because
// the buffer was full.
func (e *Endings) Lost() (uint64, error) {
	raw, err := e.conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("count lost news of conntrack: %w", err)
	}
	var memory [9]uint32 // SK_MEMINFO_VARS of linux/sock_diag.h
	const drops = 8      // SK_MEMINFO_DROPS
	size := uint32(unsafe.Sizeof(memory))
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&memory)), uintptr(unsafe.Pointer(&size)), 0)
	})
	if err == nil && errno != 0 {
		err = errno
	}
	if err != nil {
		return 0, fmt.Errorf("count lost news of conntrack: %w", err)
	}
	lost := memory[drops] - e.dropped // wraps as the kernel's does
	e.dropped = memory[drops]
	return uint64(lost), nil
}

// Close stops listening.
func (e *Endings) Close() error { return e.conn.Close() }
