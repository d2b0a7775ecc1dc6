package kernel

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// Kernel is a lasting connection to nf_tables in the network namespace in which it was
// opened. It is for one goroutine at a time.
type Client struct {
	// Lists names, for each map of lists, the map whose keys the lists are found by; an index
	// follows in theirs. Read finds large maps of lists by these keys instead of dumping them. It
	// is set before the first Read, or not at all.
	Lists map[string]string

	socket *socket
	seq    uint32 // of the next message
	sent   int    // the longest batch that the send buffer has been made for
	buf    []byte // what is received
	// encoding is the memory of the latest batch.
	encoding encoding

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
func Open() (*Client, error) {
	socket, err := openSocket()
	if err != nil {
		return nil, fmt.Errorf("open nf_tables: %w%s", err, accessRemedy(err))
	}
	k := &Client{socket: socket, seq: 1, buf: make([]byte, receiveLen)}
	if err := k.configure(); err != nil {
		return nil, errors.Join(fmt.Errorf("set up the netlink socket: %w", err), socket.close())
	}
	return k, nil
}

// configure asks for errors that say where in a message they are, but do not repeat it.
func (k *Client) configure() error {
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK} {
		if err := k.socket.setOption(option); err != nil {
			return err
		}
	}
	return k.socket.setBuffer(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer)
}

// Close closes the connection.
func (k *Client) Close() error { return k.socket.close() }

// Commit makes the kernel apply the batch: all of it, or nothing if it returns an *OpError or
// a *BatchError. After ErrUnknownOutcome either may be the case. A batch that has been sent
// cannot be cancelled; ctx is looked at before. An empty batch is not sent.
//
// Without a Generation, chains that are new to a table are made in a batch of their own just
// before, while nothing leads to them: packets must not meet them empty.
func (k *Client) Commit(ctx context.Context, b nft.Batch) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := k.carryCounters(ctx, &b); err != nil {
		return err
	}
	if b.Generation == 0 && !b.Check {
		if prelude, rest := b.TwoPhases(); !prelude.Empty() {
			return k.commitInTwo(&prelude, &rest)
		}
	}
	return k.commit(&b, scope{table: nft.TableName})
}

// commitInTwo sends a prelude before the rest of a batch, and takes it back if the kernel
// refuses the rest. If that fails in turn, or the process ends in between, chains are left
// that nothing leads to, and the next commit that is based on a reading removes them.
func (k *Client) commitInTwo(prelude, rest *nft.Batch) error {
	ours := scope{table: nft.TableName}
	if err := k.commit(prelude, ours); err != nil {
		return err
	}
	err := k.commit(rest, ours)
	if err != nil && !errors.Is(err, ErrUnknownOutcome) {
		back := prelude.Reverse()
		k.commit(&back, ours)
	}
	return err
}

// commit encodes and sends a batch about some table.
func (k *Client) commit(b *nft.Batch, s scope) error {
	if !k.destroys && s.table == nft.TableName {
		b = b.WithoutDestroy()
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
	if s.table == nft.TableName { // and not a probe
		k.traffic.add(x)
	}
	if err := k.socket.send(x.buf); err != nil {
		return &BatchError{Bytes: len(x.buf), Err: err}
	}
	return k.outcome(x, b)
}

// reserve makes the send buffer large enough for a batch of n bytes. Without CAP_NET_ADMIN
// in the initial user namespace net.core.wmem_max limits it; send then fails if it was not
// enough.
func (k *Client) reserve(n int) error {
	if n <= k.sent {
		return nil
	}
	k.sent = n
	return k.socket.setBuffer(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, n)
}

// outcome collects the answers to a batch. They are all there when the batch has been sent:
// that to the begin message, if it or the commit as a whole failed, and those to operations in
// their order. After the one to the last operation, which a refused begin leaves out, nothing
// comes.
func (k *Client) outcome(x *encoding, b *nft.Batch) error {
	o := outcome{encoding: x, batch: b}
	for !o.ended {
		n, from, err := k.socket.receive(k.buf, 0)
		switch {
		case err == unix.ENOBUFS:
			o.lost = true // those that came before are still to be received
		case err != nil:
			return o.result()
		case from == 0:
			attr.Replies(k.buf[:n], o.add)
		}
	}
	return o.result()
}

// An outcome is what the answers to a batch add up to.
type outcome struct {
	*encoding
	batch *nft.Batch
	ended bool  // the last operation was answered
	done  bool  // and acknowledged
	lost  bool  // answers did not fit into the receive buffer
	err   error // the first one
}

func (o *outcome) add(r attr.Reply) {
	index := int(int32(r.Seq - o.first)) // 0 is the begin message
	if r.Type != unix.NLMSG_ERROR || index < 0 || index > len(o.refs)+1 {
		return
	}
	o.ended = o.ended || index == len(o.refs)
	switch a := r.Ack(); {
	case a.Errno == 0:
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
func (x *encoding) refusal(b *nft.Batch, index int, a attr.Ack) error {
	var err error = a.Errno
	if a.Text != "" {
		err = fmt.Errorf("%w: %s", a.Errno, a.Text)
	}
	if index < 0 || index >= len(x.refs) {
		return &BatchError{Bytes: len(x.buf), Err: err}
	}
	return x.opError(b, index, a.Offset, err)
}
