package sync

import (
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/tracker"
)

// Limits of lines about conflicts in a minute: any tenant can make thousands of conflicts with one address.
const (
	conflictsPerNamespace = 10
	conflictsTotal        = 100
)

// A conflictLog logs conflicts, their ends, and what this node does not serve, within limits.
type conflictLog struct {
	log                       *zap.Logger
	conflicts, ends, unserved *quota.Quota
}

func newConflictLog(log *zap.Logger) *conflictLog {
	minute := func(what string) *quota.Quota {
		return &quota.Quota{Interval: time.Minute, PerNamespace: conflictsPerNamespace, Total: conflictsTotal,
			Exceeded: func(namespace string) {
				log.Warn("too many "+what+" in this namespace; the rest is not logged this minute",
					zap.String("namespace", namespace))
			}}
	}
	return &conflictLog{log: log, conflicts: minute("conflicts"), ends: minute("ends of conflicts"),
		unserved: minute("Services and annotations that are not served")}
}

// add logs new conflicts and the ends of others. It returns the conflicts that it has logged.
func (c *conflictLog) add(conflicts []services.Conflict, ends []services.OwnerChange) (logged []services.Conflict) {
	for _, conflict := range conflicts {
		if c.conflicts.Allow(conflict.Loser.Namespace, "") {
			logged = append(logged, conflict)
			c.log.Warn("two Services claim one frontend", zap.Stringer("frontend", conflict.Frontend),
				zap.Stringer("winner", conflict.Winner), zap.Stringer("loser", conflict.Loser),
				zap.String("remedy", "the loser is not served there while the winner claims it: "+
					"change the address or port of one of them"))
		}
	}
	for _, s := range ends {
		if c.ends.Allow(s.Now.Namespace, "") {
			c.log.Info("a conflict is over: the loser is served there now", zap.Stringer("frontend", s.Frontend),
				zap.Stringer("before", s.Before), zap.Stringer("now", s.Now))
		}
	}
	return logged
}

// addUnserved logs Services, and annotations of Services, that this node does not serve.
func (c *conflictLog) addUnserved(overQuota []*tracker.OverQuota, unmet []services.Unmet) {
	add := func(namespace string, err error) {
		if c.unserved.Allow(namespace, "") {
			c.log.Warn("this node does not serve what a Service requests", zap.Error(err))
		}
	}
	for _, o := range overQuota {
		add(o.Namespace, o)
	}
	for _, u := range unmet {
		add(u.ID.Namespace, u)
	}
}
