package daemon

import (
	"context"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft/layout"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/localhost"
)

// Paths of kernel settings. Services work without them, so no error here is fatal.
const (
	sysctlRoot = "/proc/sys"
	onlineCPUs = "/sys/devices/system/cpu/online"
	oomScore   = "/proc/self/oom_score_adj"
)

// noteScore logs that the score was refused. A protecting score that the kubelet has given is as
// good.
func noteScore(path string, score int, refusal error, log *zap.Logger) {
	text, _ := os.ReadFile(path)
	if have, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && have < 0 {
		log.Info("oom_score_adj stays as it was given to this process", zap.Int("want", score), zap.Int("have", have), zap.Error(refusal))
		return
	}
	log.Warn("the kernel may end this process when memory runs out", zap.Int("oom_score_adj", score), zap.Error(refusal))
}

// Prepare does what needs more privileges than the daemon has, and nothing else. It logs what it
// cannot set: Services work without it.
func Prepare(ctx context.Context, c *config.Config, stderr io.Writer) error {
	log := c.Log(stderr)
	c.LogNotices(log)
	kernel, _, err := openKernel(ctx) // the probe makes the kernel load connection tracking
	if err != nil {
		return err
	}
	kernel.Close()
	tuneConntrack(c, log)
	return nil
}

func tuneConntrack(c *config.Config, log *zap.Logger) {
	cpus, err := conntrack.OnlineCPUs(onlineCPUs)
	if err != nil {
		log.Warn("connection tracking is not sized", zap.Error(err))
		return
	}
	for _, sysctl := range conntrack.Apply(c.Conntrack, sysctlRoot, cpus) {
		switch {
		case sysctl.Err != nil:
			log.Warn("sysctl", zap.Error(sysctl.Err))
		case sysctl.Changed:
			log.Info("sysctl", zap.String("name", sysctl.Name), zap.Int64("value", sysctl.Want), zap.Int64("before", sysctl.Have))
		}
	}
}

// serveLocalhost serves node ports at loopback addresses if the settings request it. Unless the ruleset
// does so, it logs what an earlier kube-nft that let it may have left open.
func (d *daemon) serveLocalhost(ctx context.Context, settings *proxysync.Options) {
	if d.config.LocalhostNodePorts {
		d.routeLocalhost(settings)
	} else if exposure := localhost.Exposure(sysctlRoot); exposure != "" {
		d.log.Warn("loopback addresses", zap.String("notice", exposure))
	}
	var addrs []netip.Addr
	for _, family := range d.config.LocalhostProxies {
		addrs = append(addrs, layout.LocalhostAddress(family))
	}
	if len(addrs) > 0 {
		proxy, committed := localhost.NewProxy(ctx, addrs, d.log), settings.Committed
		settings.Committed = func(report proxysync.Report) {
			committed(report)
			proxy.Apply(report.Delta)
		}
	}
}

// routeLocalhost makes the kernel route loopback addresses after the first commit.
func (d *daemon) routeLocalhost(settings *proxysync.Options) {
	var route sync.Once
	committed := settings.Committed
	settings.Committed = func(report proxysync.Report) {
		committed(report)
		route.Do(func() { // the rule that keeps other hosts out is now in force
			switch changed, err := localhost.Route(sysctlRoot); {
			case err != nil:
				d.log.Warn("localhost node ports", zap.Error(err))
			case changed:
				d.log.Info("localhost node ports: the kernel now routes loopback addresses; our ruleset drops connections to them from other hosts",
					zap.String("sysctl", "net.ipv4.conf.all.route_localnet"), zap.Int("value", 1))
			}
		})
	}
}
