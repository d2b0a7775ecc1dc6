package nft

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Remember adds or refreshes the entry client -> destination in an affinity map. It takes
// the client from connection tracking, as its first packet had it, and the destination from
// the packet, where it has been rewritten.
type Remember struct {
	Map     string
	Timeout uint64 // seconds
}

func (s Remember) text(f Family) string {
	return fmt.Sprintf("update @%s { %s timeout %s : %s }",
		s.Map, OriginalSource.text(f), durationText(s.timeout()), Destination.text(f))
}

func (s Remember) encode(e *encoder) {
	e.add(OriginalSource.load(e.family, unix.NFT_REG_1))
	e.add(Destination.load(e.family, unix.NFT_REG_2))
	e.add(&expr.Dynset{
		SrcRegKey: unix.NFT_REG_1, SrcRegData: unix.NFT_REG_2,
		SetName: s.Map, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: s.timeout(),
	})
}

func (s Remember) timeout() time.Duration { return time.Duration(s.Timeout) * time.Second }

// durationText prints a duration as nft does: the units that are not zero, from days down
// to milliseconds.
func durationText(d time.Duration) string {
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
