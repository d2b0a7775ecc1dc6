package nft

import (
	"fmt"
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

// DynamicMaps are the affinity maps that were looked into on the way, whether or not they
// held the client. kernel.Client.Read leaves out what they hold: read it with Client.Elements and
// trace once more.
func (t *Table) DynamicMaps(fate Fate) (sets []*Set) {
	seen := make(map[string]bool)
	for _, step := range fate.Steps {
		if chain := t.Chains[step.Chain]; chain != nil && !seen[step.Chain] {
			seen[step.Chain] = true
			sets = append(sets, t.dynamicMaps(chain)...)
		}
	}
	return sets
}

func (t *Table) dynamicMaps(chain *Chain) (sets []*Set) {
	for _, rule := range chain.Rules {
		for _, stmt := range rule {
			dnat, ok := stmt.(DNATFrom)
			if held := t.Sets[dnat.Map]; ok && held != nil && held.Set.Dynamic {
				sets = append(sets, held.Set)
			}
		}
	}
	return sets
}
