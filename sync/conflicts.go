package sync

import (
	"cmp"
	"slices"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// How many conflicts are named at most in a minute, in the log and as events. Any tenant can
// make thousands with one address, which must not hide the conflicts of other tenants. That is
// why the first one of a namespace is named however many others there are.
const (
	namedPerFrontend  = 3 // of a namespace at one frontend
	namedPerNamespace = 10
	namedInAll        = 100
)

// A quota counts what has been named of each namespace in this minute.
type quota struct {
	inAll      int
	namespaces map[string]int
	frontends  map[namespaceFrontend]int
	leftOut    int
}

type namespaceFrontend struct {
	namespace string
	tracker.Frontend
}

// take reports whether one more may be named, and which one of its namespace it is.
func (q *quota) take(namespace string, f tracker.Frontend) (rank int, ok bool) {
	at := namespaceFrontend{namespace, f}
	rank = q.namespaces[namespace]
	if rank > 0 && q.inAll >= namedInAll || rank >= namedPerNamespace || q.frontends[at] >= namedPerFrontend {
		q.leftOut++
		return 0, false
	}
	if q.namespaces == nil {
		q.namespaces, q.frontends = make(map[string]int), make(map[namespaceFrontend]int)
	}
	q.inAll++
	q.namespaces[namespace]++
	q.frontends[at]++
	return rank, true
}

// A conflictLog names conflicts and their ends, as far as quotas go, and counts the others.
type conflictLog struct {
	log           *zap.Logger
	fresh, over   quota
	unmet         quota
	standing      int
	toldOfLeftOut bool // in this minute
}

// note names conflicts that have come up and are over. It returns the conflicts that users are
// to be told of: the first one of each namespace first.
func (c *conflictLog) note(fresh []services.Conflict, successions []services.Succession, standing int) (named []services.Conflict) {
	c.standing = standing
	type ranked struct {
		services.Conflict
		rank int
	}
	var list []ranked
	for _, conflict := range fresh {
		if rank, ok := c.fresh.take(conflict.Loser.Namespace, conflict.Frontend); ok {
			list = append(list, ranked{conflict, rank})
		}
	}
	slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	for _, conflict := range list {
		named = append(named, conflict.Conflict)
		c.log.Warn("conflict", zap.Stringer("frontend", conflict.Frontend),
			zap.Stringer("winner", conflict.Winner), zap.Stringer("loser", conflict.Loser),
			zap.String("remedy", "the loser is not served there while the winner claims it: change the address or port of one of them"))
	}
	for _, s := range successions {
		if _, ok := c.over.take(s.Heir.Namespace, s.Frontend); ok {
			c.log.Info("conflict over: the loser is served there now", zap.Stringer("frontend", s.Frontend),
				zap.Stringer("before", s.Before), zap.Stringer("now", s.Heir))
		}
	}
	if !c.toldOfLeftOut {
		c.tellLeftOut()
	}
	return named
}

// noteUnmet names annotations that this node does not follow, as far as a quota goes, and returns those that users are to
// be told of.
func (c *conflictLog) noteUnmet(unmet []services.Unmet) (named []services.Unmet) {
	for _, u := range unmet {
		if _, ok := c.unmet.take(u.ID.Namespace, tracker.Frontend{Port: uint16(c.unmet.namespaces[u.ID.Namespace])}); ok {
			named = append(named, u)
			c.log.Warn("refused", zap.Error(u.Refusal()))
		}
	}
	if !c.toldOfLeftOut {
		c.tellLeftOut()
	}
	return named
}

// tellLeftOut says how many have not been named.
func (c *conflictLog) tellLeftOut() {
	if c.unmet.leftOut > 0 {
		c.log.Warn("more annotations are not followed than are named", zap.Int("annotations", c.unmet.leftOut))
		c.unmet.leftOut, c.toldOfLeftOut = 0, true
	}
	if c.fresh.leftOut == 0 && c.over.leftOut == 0 {
		return
	}
	c.log.Warn("more conflicts than are named", zap.Int("conflicts", c.fresh.leftOut), zap.Int("over", c.over.leftOut), zap.Int("standing", c.standing))
	c.fresh.leftOut, c.over.leftOut, c.toldOfLeftOut = 0, 0, true
}

// endMinute tells what is left to tell and begins anew.
func (c *conflictLog) endMinute() {
	c.tellLeftOut()
	c.fresh, c.over, c.unmet, c.toldOfLeftOut = quota{}, quota{}, quota{}, false
}
