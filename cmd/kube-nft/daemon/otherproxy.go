package daemon

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// proxyInterval is the time between two looks for rules of kube-proxy's, at least.
const proxyInterval = 5 * time.Second

// watchProxy notices when kube-proxy programs this node as well, whether it has come back after a
// takeover or was never to be taken over. It looks until ctx ends, except while a takeover is at
// work: then kube-proxy's rules are expected.
func (d *daemon) watchProxy(ctx context.Context) error {
	watch, err := legacy.NewWatch()
	if err != nil {
		return err
	}
	defer watch.Close()
	var found atomic.Bool
	d.monitor.metrics.ForeignProxy(found.Load)
	var failing quota.Once
	for rest := proxyInterval; retry.Pause(ctx, rest); {
		rest = proxyInterval
		if d.takingOver() {
			continue
		}
		began := time.Now()
		places, err := watch.Look(ctx)
		rest = max(rest, retry.Rest(time.Since(began)))
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && len(places) == 0:
			if failing.Report(err.Error()) {
				d.log.Warn("cannot check whether kube-proxy programs this node", zap.Error(err))
			}
			continue
		case len(places) > 0 && !found.Load():
			found.Store(true)
			d.monitor.services.StandIn(true) // it has the health-check node ports until it ends
			d.reportProxy(places)
		case len(places) == 0 && found.Load():
			found.Store(false)
			d.monitor.services.StandIn(false)
			d.log.Info("kube-proxy has no rules on this node any more")
		}
		failing.Over()
	}
	return nil
}

// reportProxy says where kube-proxy has rules, and which process it is, if that is visible.
func (d *daemon) reportProxy(places []string) {
	processes, _ := legacy.Processes(d.config.HostProc) // a container may not see the node's processes
	processes = slices.DeleteFunc(processes, func(p legacy.Process) bool { return p.PID == 0 })
	text := "kube-proxy programs this node as well, in " + strings.Join(places, ", ") +
		": kube-nft serves, but kube-proxy's rules can refuse connections, " +
		"and kube-proxy deletes conntrack entries that it regards as stale. Keep it off this node, then remove its " +
		"rules with kube-nft migrate apply"
	fields := []zap.Field{}
	if len(processes) > 0 {
		fields = append(fields, zap.Stringer("kube_proxy", &processes[0]))
	}
	d.log.Warn(text, fields...)
	d.monitor.events.node(warning, "ForeignProxy", "Watch", text)
}
