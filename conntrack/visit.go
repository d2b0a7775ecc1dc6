package conntrack

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Visit calls visit for up to budget flows that filter selects. The flow is valid during the call only.
// complete is false if there are more flows, or if the table changed so that some may be missing. What is
// beyond the budget is not read from the kernel.
func (t *Table) Visit(ctx context.Context, filter Filter, budget int, visit func(*Flow)) (complete bool, err error) {
	for {
		seen, enough := 0, false
		stopped, stop := context.WithCancel(ctx)
		_, err = t.dump(stopped, filter, func(flow *Flow) bool {
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
		stop()
		switch {
		case enough:
			t.broken = true
			return false, nil
		case refusesFilter(err) && !t.unfiltered && seen == 0:
			t.unfiltered = true
			continue
		case errors.Is(err, ErrInterrupted):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("read conntrack table: %w", err)
		}
		return true, nil
	}
}

// Ended reports whether nothing more is to come of a connection: TCP has said goodbye in both directions, or was reset.
func (f *Flow) Ended() bool {
	const lastACK, closed = 6, 8 // TCP_CONNTRACK_LAST_ACK to TCP_CONNTRACK_CLOSE in linux/netfilter/nf_conntrack_tcp.h
	return lastACK <= f.TCPState && f.TCPState <= closed
}
