// Package neighbours notices other programs of this node that harm Services: a kube-proxy that programs the node as
// well, and firewalls that refuse connections to endpoints.
//
//	w := &neighbours.Watch{Log: log, Warn: recordAnEventOfTheNode, Pauses: takingOver}
//	go w.Proxy(ctx, "/proc", found)
//	go w.Forward(ctx, &sample, mark, count)
package neighbours

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// proxyInterval is the time between two looks for rules of kube-proxy's, at least.
const proxyInterval = 5 * time.Second

// A Watch logs what it notices, and has it recorded as an event about this node.
type Watch struct {
	Log    *zap.Logger
	Warn   func(reason, text string) // records an event
	Pauses func() bool               // kube-proxy's rules concern a takeover alone
}

// Proxy notices when kube-proxy programs this node as well, whether it has come back after a takeover or was never to
// be taken over. It looks until ctx ends, and calls found when this begins and when it ends. hostProc is where the
// node's processes are.
func (w *Watch) Proxy(ctx context.Context, hostProc string, found func(bool)) error {
	watch, err := legacy.NewWatch()
	if err != nil {
		return err
	}
	defer watch.Close()
	known := false
	var failing quota.Once
	for rest := proxyInterval; retry.Pause(ctx, rest); {
		rest = proxyInterval
		if w.Pauses() {
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
				w.Log.Warn("cannot check whether kube-proxy programs this node", zap.Error(err))
			}
			continue
		case len(places) > 0 && !known:
			known = true
			found(true)
			w.reportProxy(hostProc, places)
		case len(places) == 0 && known:
			known = false
			found(false)
			w.Log.Info("kube-proxy has no rules on this node any more")
		}
		failing.Over()
	}
	return nil
}

// reportProxy says where kube-proxy has rules, and which process it is, if that is visible.
func (w *Watch) reportProxy(hostProc string, places []string) {
	processes, _ := legacy.Processes(hostProc) // a container may not see the node's processes
	processes = slices.DeleteFunc(processes, func(p legacy.Process) bool { return p.PID == 0 })
	text := "kube-proxy programs this node as well, in " + strings.Join(places, ", ") +
		": kube-nft serves, but kube-proxy's rules can refuse connections, " +
		"and kube-proxy deletes conntrack entries that it regards as stale. Keep it off this node, then remove its " +
		"rules with kube-nft migrate apply"
	fields := []zap.Field{}
	if len(processes) > 0 {
		fields = append(fields, zap.Stringer("kube_proxy", &processes[0]))
	}
	w.Log.Warn(text, fields...)
	w.Warn("ForeignProxy", text)
}
