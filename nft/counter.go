package nft

import "github.com/google/nftables/expr"

// Counter counts the packets that come to its rule; it is all of the rule. Rules are equal whatever
// they have counted.
type Counter struct{}

func (Counter) text(Family) string { return "counter packets 0 bytes 0" }

func (Counter) expressions(Family) []expr.Any { return []expr.Any{&expr.Counter{}} }

func (Counter) parse(_ Family, x []expr.Any) (Stmt, int) {
	if at[*expr.Counter](x, 0) != nil {
		return Counter{}, 1
	}
	return nil, 0
}

// trace makes no step of it: it decides nothing.
func (Counter) trace(*tracer, int) flow { return skip }

// Counted returns how many packets the first counter of a rule that the kernel holds has counted.
func (r Rule) Counted(f Family) (packets uint64, ok bool) {
	for _, stmt := range r {
		raw, held := stmt.(Raw)
		if !held {
			continue
		}
		for _, x := range parseExpressions(f, raw.Expressions) {
			if counter, found := x.(*expr.Counter); found {
				return counter.Packets, true
			}
		}
	}
	return 0, false
}
