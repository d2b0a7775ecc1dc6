package nft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Kernel is a lasting connection to nf_tables in the network namespace in which it was
// opened. It is for one goroutine at a time.
type Kernel struct {
	conn *netlink.Conn
	raw  syscall.RawConn
	seq  uint32 // of the next message
	sent int    // the longest batch that the send buffer has been made for
	buf  []byte // what is received
	// encoding is the memory of the latest batch.
	encoding encoding
	// deadline says that waiting for an answer has been given one.
	deadline bool

	traffic Traffic
	// destroys says that the kernel knows the verb Destroy. It is not assumed before Probe.
	destroys bool
}

// The kernel answers a dump in pieces of at most 32 KiB. Errors wait in the receive buffer
// until all of the batch has been worked on, each in about 1 KiB.
const (
	receiveLen    = 64 << 10
	receiveBuffer = 8 << 20
)

// Open opens the connection. It takes no privilege but what Commit and Read need later,
// CAP_NET_ADMIN.
func Open() (*Kernel, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open nf_tables: %w%s", err, accessRemedy(err))
	}
	k := &Kernel{conn: conn, seq: 1, buf: make([]byte, receiveLen)}
	if err := k.configure(); err != nil {
		return nil, errors.Join(fmt.Errorf("set up the netlink socket: %w", err), conn.Close())
	}
	return k, nil
}

// configure asks for errors that say where in a message they are, but do not repeat it.
func (k *Kernel) configure() (err error) {
	for _, option := range []netlink.ConnOption{netlink.ExtendedAcknowledge, netlink.CapAcknowledge} {
		if err := k.conn.SetOption(option, true); err != nil {
			return err
		}
	}
	if k.raw, err = k.conn.SyscallConn(); err != nil {
		return err
	}
	return k.setBuffer(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer)
}

// Close closes the connection.
func (k *Kernel) Close() error { return k.conn.Close() }

// Commit makes the kernel apply the batch: all of it, or nothing if it returns an *OpError or
// a *BatchError. After ErrUnknownOutcome either may be the case. A batch that has been sent
// cannot be cancelled; ctx is looked at before. An empty batch is not sent.
//
// Without a Generation, chains that are new to a table are made in a batch of their own just
// before, while nothing leads to them: packets must not meet them empty.
func (k *Kernel) Commit(ctx context.Context, b Batch) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := k.carryCounters(ctx, &b); err != nil {
		return err
	}
	if b.Generation == 0 && !b.Check {
		if prelude, rest := b.split(); !prelude.Empty() {
			return k.commitInTwo(&prelude, &rest)
		}
	}
	return k.commit(&b, scope{table: TableName})
}

// commit encodes and sends a batch about some table.
func (k *Kernel) commit(b *Batch, s scope) error {
	if !k.destroys && s.table == TableName {
		b = b.withoutDestroy()
	}
	x := &k.encoding
	defer x.trim()
	if err := x.encode(b, s, k.seq); err != nil || len(x.refs) == 0 {
		return err
	}
	k.seq += uint32(len(x.refs)) + 2
	if err := k.reserve(len(x.buf)); err != nil {
		return fmt.Errorf("enlarge the send buffer: %w", err)
	}
	if s.table == TableName { // and not a probe
		k.traffic.add(x)
	}
	if err := k.send(x.buf); err != nil {
		return &BatchError{Bytes: len(x.buf), Err: err}
	}
	return k.outcome(x, b)
}

// reserve makes the send buffer large enough for a batch of n bytes. Without CAP_NET_ADMIN
// in the initial user namespace net.core.wmem_max limits it; send then fails if it was not
// enough.
func (k *Kernel) reserve(n int) error {
	if n <= k.sent {
		return nil
	}
	k.sent = n
	return k.setBuffer(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, n)
}

func (k *Kernel) setBuffer(force, normal, n int) (err error) {
	controlErr := k.raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, force, n) != nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, normal, n)
		}
	})
	return errors.Join(controlErr, err)
}

// send hands over messages in one system call. For a batch it returns when the kernel has
// worked on all of it.
func (k *Kernel) send(b []byte) (err error) {
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	rawErr := k.raw.Write(func(fd uintptr) bool {
		err = unix.Sendto(int(fd), b, 0, to)
		return err != unix.EAGAIN
	})
	return cmp.Or(rawErr, err)
}

// outcome collects the answers to a batch. They are all there when the batch has been sent:
// that to the begin message, if it or the commit as a whole failed, and those to operations in
// their order. After the one to the last operation, which a refused begin leaves out, nothing
// comes.
func (k *Kernel) outcome(x *encoding, b *Batch) error {
	o := outcome{encoding: x, batch: b}
	if err := k.setDeadline(0); err != nil {
		return ErrUnknownOutcome
	}
	for !o.ended {
		n, from, err := k.receive(false)
		switch {
		case err == unix.ENOBUFS:
			o.lost = true // those that came before are still to be received
		case err != nil:
			return o.result()
		case from == 0:
			replies(k.buf[:n], o.add)
		}
	}
	return o.result()
}

// setDeadline makes receive wait for so long at most; 0 is no limit.
func (k *Kernel) setDeadline(timeout time.Duration) error {
	var at time.Time
	if timeout > 0 {
		at = time.Now().Add(timeout)
	} else if !k.deadline {
		return nil
	}
	k.deadline = timeout > 0
	return k.conn.SetReadDeadline(at)
}

// An outcome is what the answers to a batch add up to.
type outcome struct {
	*encoding
	batch *Batch
	ended bool  // the last operation was answered
	done  bool  // and acknowledged
	lost  bool  // answers did not fit into the receive buffer
	err   error // the first one
}

func (o *outcome) add(r reply) {
	index := int(int32(r.seq - o.first)) // 0 is the begin message
	if r.typ != unix.NLMSG_ERROR || index < 0 || index > len(o.refs)+1 {
		return
	}
	o.ended = o.ended || index == len(o.refs)
	switch a := r.ack(); {
	case a.errno == 0:
		o.done = o.done || index == len(o.refs)
	case o.err == nil:
		o.err = o.refusal(o.batch, index-1, a)
	}
}

func (o *outcome) result() error {
	if o.err == nil && (o.lost || !o.done) {
		return ErrUnknownOutcome
	}
	return o.err
}

// refusal is the error for a refused message, or for the begin or end of the batch.
func (x *encoding) refusal(b *Batch, index int, a ack) error {
	var err error = a.errno
	if a.text != "" {
		err = fmt.Errorf("%w: %s", a.errno, a.text)
	}
	if index < 0 || index >= len(x.refs) {
		return &BatchError{Bytes: len(x.buf), Err: err}
	}
	return x.opError(b, index, a.offset, err)
}

// receive reads one datagram into buf and returns the port of the sender; the kernel's is 0.
// Without wait it returns EAGAIN if there is none.
func (k *Kernel) receive(wait bool) (n int, from uint32, err error) {
	rawErr := k.raw.Read(func(fd uintptr) bool {
		var sender unix.Sockaddr
		n, sender, err = unix.Recvfrom(int(fd), k.buf, unix.MSG_DONTWAIT)
		if sa, ok := sender.(*unix.SockaddrNetlink); ok {
			from = sa.Pid
		}
		return err != unix.EAGAIN || !wait
	})
	if rawErr != nil {
		return 0, 0, rawErr
	}
	return n, from, err
}
