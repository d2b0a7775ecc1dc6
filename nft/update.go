package nft

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Update adds or refreshes the entry client -> destination in a dynamic map. It takes the
// client from connection tracking, as its first packet had it, and the destination from the
// packet, where it has been rewritten.
type Update struct {
	Map     string
	Timeout uint64 // seconds
}

func (s Update) text(f Family) string {
	return fmt.Sprintf("update @%s { %s timeout %s : %s }",
		s.Map, OriginalSource.text(f), DurationText(s.Duration()), Destination.text(f))
}

func (s Update) expressions(f Family) []expr.Any {
	return []expr.Any{
		OriginalSource.load(f, unix.NFT_REG_1),
		Destination.load(f, unix.NFT_REG_2),
		&expr.Dynset{
			SrcRegKey: unix.NFT_REG_1, SrcRegData: unix.NFT_REG_2,
			SetName: s.Map, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: s.Duration(),
		},
	}
}

func (Update) parse(f Family, x []expr.Any) (Stmt, int) {
	_, n := parseKey(f, x)
	if d := at[*expr.Dynset](x, n); d != nil {
		return Update{Map: d.SetName, Timeout: uint64(d.Timeout.Seconds())}, n + 1
	}
	return nil, 0
}

// trace passes the statement over: a trace changes nothing.
func (Update) trace(*tracer, int) flow { return skip }

// Duration is the timeout.
func (s Update) Duration() time.Duration { return time.Duration(s.Timeout) * time.Second }

// DurationText prints a duration as nft does: the units that are not zero, from days down
// to milliseconds.
func DurationText(d time.Duration) string {
	if d < time.Millisecond {
		return "0s"
	}
	var b strings.Builder
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / unit.length; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, unit.name)
			d -= n * unit.length
		}
	}
	return b.String()
}
