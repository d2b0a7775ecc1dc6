package kernel

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// Client is a lasting connection to nf_tables in the network namespace in which it was
// opened. It is for one goroutine at a time.
type Client struct {
	socket *socket
	seq    uint32 // of the next message
	sent   int    // the longest batch that the send buffer has room for
	buf    []byte // what is received
	// encoding is the memory of the latest batch.
	encoding wire.Encoding

	traffic Traffic
	// destroys says that the kernel knows the verb Destroy. It is false before Probe.
	destroys bool
}

// The kernel answers a dump in pieces of at most 32 KiB. Errors, about 1 KiB each, wait in the
// receive buffer until the kernel has worked on the whole batch.
const (
	receiveLen    = 64 << 10
	receiveBuffer = 8 << 20
)

// Open opens the connection. It needs no privilege; Commit and Read need CAP_NET_ADMIN.
func Open() (*Client, error) {
	socket, err := openSocket()
	if err != nil {
		return nil, fmt.Errorf("open nf_tables: %w%s", err, accessRemedy(err))
	}
	k := &Client{socket: socket, seq: 1, buf: make([]byte, receiveLen)}
	// EXT_ACK asks for errors that point into the refused message, CAP_ACK for errors that do not repeat it.
	err = errors.Join(socket.setOption(unix.NETLINK_EXT_ACK), socket.setOption(unix.NETLINK_CAP_ACK),
		setBuffer(socket.fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up the netlink socket: %w", err), socket.close())
	}
	return k, nil
}

// Traffic counts what a Client has sent in its life: all batches, whatever became of them.
type Traffic struct {
	Batches  uint64
	Messages uint64 // with the begin and the end of each batch
	Bytes    uint64
}

// Sent returns what Commit has sent. Only the goroutine that calls Commit may call it.
func (k *Client) Sent() Traffic { return k.traffic }

// Close closes the connection.
func (k *Client) Close() error { return k.socket.close() }

// Commit makes the kernel apply the batch: all of it, or nothing if Commit returns an *OpError or a
// *BatchError. After ErrUnknownOutcome either may be true, or a part may be done. Commit looks at ctx
// before it sends; a batch that has been sent cannot be cancelled. It does not send an empty batch.
//
// Without a Generation, Commit sends up to three batches: packets must find no empty chain, and no empty list (see
// change.Phases).
func (k *Client) Commit(ctx context.Context, b nft.Batch) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	batch := &b
	if !k.destroys {
		batch = change.WithoutDestroy(batch)
	}
	if b.Generation == 0 && !b.Check {
		return k.commitPhases(change.Phases(batch))
	}
	return k.commit(batch, wire.Ours)
}

// commitPhases sends the phases of a batch. If the kernel refuses the middle one, it takes the first one back. If that
// fails too, or the process ends in between, chains and sets remain that no packet finds. The next commit based on a
// reading removes them. So it does if the kernel refuses the last phase.
func (k *Client) commitPhases(first, rest, last nft.Batch) error {
	if err := k.commit(&first, wire.Ours); err != nil {
		return err
	}
	err := k.commit(&rest, wire.Ours)
	if err != nil && !errors.Is(err, ErrUnknownOutcome) {
		back := change.Reverse(&first)
		k.commit(&back, wire.Ours)
	}
	if err != nil {
		return err
	}
	if err := k.commit(&last, wire.Ours); err != nil {
		return fmt.Errorf("%w: %v", ErrUnknownOutcome, err)
	}
	return nil
}

// commit encodes and sends a batch about some table.
func (k *Client) commit(b *nft.Batch, s wire.Scope) error {
	x := &k.encoding
	defer x.Trim()
	if err := x.Encode(b, s, k.seq); err != nil || x.Messages() == 0 {
		return err
	}
	k.seq += uint32(x.Messages()) + 2
	if err := k.reserve(len(x.Buf)); err != nil {
		return fmt.Errorf("enlarge the send buffer: %w", err)
	}
	if s == wire.Ours { // and not a probe
		k.traffic.Batches++
		k.traffic.Messages += uint64(x.Messages()) + 2
		k.traffic.Bytes += uint64(len(x.Buf))
	}
	if err := k.socket.send(x.Buf); err != nil {
		return &BatchError{Bytes: len(x.Buf), Err: err}
	}
	return k.outcome(x, b)
}

// reserve makes the send buffer large enough for a batch of n bytes. Without CAP_NET_ADMIN in the
// initial user namespace net.core.wmem_max limits the buffer; if it is too small, send fails.
func (k *Client) reserve(n int) error {
	if n <= k.sent {
		return nil
	}
	k.sent = n
	return setBuffer(k.socket.fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, n)
}
