package conntrack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// dumpAttempts is how often an inconsistent dump is tried.
const dumpAttempts = 3

// replyTimeout bounds the wait for an answer that the kernel always sends at once. If one is lost,
// the caller gets an error instead of waiting forever.
const replyTimeout = 30 * time.Second

// receiveBuffer holds the largest datagram of a dump: the kernel uses as much of the receiver's
// buffer as it can, up to 32 KiB.
const receiveBuffer = 64 << 10

// ErrInterrupted says that the table changed during every attempt to dump it, so that flows may be
// missing. The flows that come with the error are real.
var ErrInterrupted = errors.New("the conntrack table changed while it was read; entries may be missing")

// A Table is the connection tracking table of the network namespace in which it was
// opened. It belongs to one goroutine.
type Table struct {
	conn       *netlink.Conn
	broken     bool // conn may still receive old answers: it must be replaced
	unfiltered bool // the kernel refused a filter: send none again
}

// Open opens the table over a socket that lasts until Close. On most kernels reading needs no
// privilege; deleting needs CAP_NET_ADMIN.
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
		return nil, fmt.Errorf("open conntrack socket: %w", err)
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
		return nil, fmt.Errorf("conntrack socket: %w", err)
	}
	return t.conn, nil
}

// Flows returns the flows that filter selects and keep accepts; a nil keep accepts all. The kernel
// filters if it can. Flows that it cannot filter take no memory here. With ErrInterrupted the flows
// come from the last attempt.
func (t *Table) Flows(ctx context.Context, filter Filter, keep func(*Flow) bool) (flows []Flow, err error) {
	for range dumpAttempts {
		if flows, err = t.dump(ctx, filter, keep); !errors.Is(err, ErrInterrupted) {
			break
		}
	}
	if err != nil {
		return flows, fmt.Errorf("read conntrack table: %w", err)
	}
	return flows, nil
}

// Visit calls visit for up to budget flows that filter selects. The flow is valid during the call only.
// complete is false if there are more flows, or if the table changed so that some may be missing. What is
// beyond the budget is not read from the kernel.
func (t *Table) Visit(ctx context.Context, filter Filter, budget int, visit func(*Flow)) (complete bool, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	seen, enough := 0, false
	_, err = t.dump(ctx, filter, func(flow *Flow) bool {
		switch {
		case enough:
		case seen == budget:
			// The rest of the dump ends with its socket: reading fails from here on, and the next request gets
			// another socket.
			enough, t.broken = true, true
			_ = t.conn.SetReadDeadline(time.Unix(1, 0))
			stop()
		default:
			seen++
			visit(flow)
		}
		return false
	})
	switch {
	case enough, errors.Is(err, ErrInterrupted):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read conntrack table: %w", err)
	}
	return true, nil
}

// refusesFilter reports whether err means that the kernel refuses a filter. Kernels before 5.8 do
// not refuse it; they ignore it and send everything.
func refusesFilter(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// dump makes one attempt, and another one if the kernel refuses the filter: then it is asked for all flows of the
// family, from now on.
func (t *Table) dump(ctx context.Context, filter Filter, keep func(*Flow) bool) ([]Flow, error) {
	flows, err := t.tryDump(ctx, filter, keep)
	if refusesFilter(err) && !t.unfiltered {
		t.unfiltered = true
		return t.tryDump(ctx, filter, keep)
	}
	return flows, err
}

// tryDump compares every flow with filter, whatever the kernel was asked for.
func (t *Table) tryDump(ctx context.Context, filter Filter, keep func(*Flow) bool) ([]Flow, error) {
	conn, err := t.ready()
	if err != nil {
		return nil, err
	}
	wanted := filter
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
