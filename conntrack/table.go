package conntrack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// dumpAttempts is how often a dump that the kernel calls inconsistent is made.
const dumpAttempts = 3

// replyTimeout bounds the wait for an answer that the kernel always gives at once: should
// one be lost, the caller gets an error instead of waiting forever.
const replyTimeout = 30 * time.Second

// receiveBuffer holds the largest datagram of a dump: the kernel fills as much as the
// receiver's buffer takes, up to 32 KiB.
const receiveBuffer = 64 << 10

// ErrInterrupted says that the table changed so much during every attempt to dump it that
// flows may be missing. Those that came with the error are real.
var ErrInterrupted = errors.New("connection tracking table changed while it was read; flows may be missing")

// A Table is the connection tracking table of the network namespace in which it was
// opened. It belongs to one goroutine.
type Table struct {
	conn       *netlink.Conn
	broken     bool // answers may still be under way to conn: it must be replaced
	unfiltered bool // the kernel refused a filter: send none again
}

// Open opens the table over a socket that lasts until Close. Reading needs no privilege
// in most kernels, deleting needs CAP_NET_ADMIN.
func Open() (*Table, error) {
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	return &Table{conn: conn}, nil
}

func dial() (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: receiveBuffer})
	if err != nil {
		return nil, fmt.Errorf("open connection tracking socket: %w", err)
	}
	// Both only make answers shorter or clearer; kernels that lack them do without.
	_ = conn.SetOption(netlink.CapAcknowledge, true)
	_ = conn.SetOption(netlink.ExtendedAcknowledge, true)
	return conn, nil
}

// Close closes the table's socket.
func (t *Table) Close() error { return t.conn.Close() }

// ready returns a socket on which the next answer belongs to the next request.
func (t *Table) ready() (*netlink.Conn, error) {
	if t.broken {
		conn, err := dial()
		if err != nil {
			return nil, err
		}
		_ = t.conn.Close()
		t.conn, t.broken = conn, false
	}
	if err := t.conn.SetReadDeadline(time.Now().Add(replyTimeout)); err != nil {
		return nil, fmt.Errorf("connection tracking socket: %w", err)
	}
	return t.conn, nil
}

// Flows returns the flows that filter selects and keep wants; a nil keep wants all. The
// kernel filters if it can; what it cannot filter never takes memory here. With
// ErrInterrupted the flows are those of the last attempt.
func (t *Table) Flows(ctx context.Context, filter Filter, keep func(*Flow) bool) (flows []Flow, err error) {
	for range dumpAttempts {
		flows, err = t.dump(ctx, filter, keep)
		if refusesFilter(err) && !t.unfiltered {
			t.unfiltered = true
			flows, err = t.dump(ctx, filter, keep)
		}
		if !errors.Is(err, ErrInterrupted) {
			break
		}
	}
	if err != nil {
		return flows, fmt.Errorf("read connection tracking table: %w", err)
	}
	return flows, nil
}

// refusesFilter reports whether err is how a kernel declines a filter. Those before 5.8
// do not decline, they ignore it and send everything.
func refusesFilter(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// dump makes one attempt. Whatever the kernel was asked for, every flow is held against
// filter here as well. A kernel that refused a filter sends all of the family.
func (t *Table) dump(ctx context.Context, filter Filter, keep func(*Flow) bool) ([]Flow, error) {
	conn, err := t.ready()
	if err != nil {
		return nil, err
	}
	wanted := filter.widened()
	if t.unfiltered {
		wanted = Filter{Family: wanted.Family}
	}
	_, err = conn.Send(netlink.Message{
		Header: netlink.Header{Type: typeGet, Flags: netlink.Request | netlink.Dump},
		Data:   wanted.encode(),
	})
	if err != nil {
		return nil, err
	}
	var flows []Flow
	var flow Flow // outside the loop: keep makes it escape, and one is enough
	interrupted := false
	for message, err := range conn.ReceiveIter() {
		if err != nil {
			t.broken = !refusesFilter(err)
			if errors.Is(err, unix.EINTR) {
				err = ErrInterrupted
			}
			return flows, err
		}
		// Leaving the loop early is safe: the iterator discards the rest of the dump.
		if err := ctx.Err(); err != nil {
			return flows, err
		}
		interrupted = interrupted || message.Header.Flags&netlink.DumpInterrupted != 0
		if flow, err = decode(message.Data); err != nil {
			return flows, err
		}
		if filter.Matches(&flow) && (keep == nil || keep(&flow)) {
			flows = append(flows, flow)
		}
	}
	if interrupted {
		return flows, ErrInterrupted
	}
	return flows, nil
}
