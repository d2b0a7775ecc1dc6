package daemon

import (
	"errors"

	"github.com/kube-nft/kube-nft/conntrack"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/flows"
)

// endingsBuffer is what may wait for flow metrics: 16,000 connections that ended, or more.
const endingsBuffer = 16 << 20

// newFlows returns the counter of what connections to Services move.
func (d *daemon) newFlows() *flows.Counter {
	return flows.New(flows.Options{
		Log: d.log, Committed: d.view, CPUTime: proxysync.ThreadTime,
		Exists: func(s flows.Service) bool {
			_, ok := d.tracker.ServiceUID(s.Namespace, s.Name)
			return ok
		},
		Open:    func() (flows.Table, error) { return conntrack.Open() },
		Listen:  func() (flows.Endings, error) { return conntrack.Listen(endingsBuffer) },
		Account: func() error { return errors.Join(logSysctls(conntrack.Account(sysctlRoot), d.log)...) },
	})
}
