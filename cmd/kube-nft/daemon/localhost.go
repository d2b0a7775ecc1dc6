package daemon

import (
	"context"
	"net/netip"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/sync/localhost"
	"github.com/kube-nft/kube-nft/tracker"
)

// localhostPorts serves node ports at loopback addresses.
type localhostPorts struct {
	log   *zap.Logger
	route bool             // the kernel is to route loopback addresses after the next commit
	proxy *localhost.Proxy // nil if the settings do not ask for one
}

// newLocalhostPorts returns what the settings request. Unless the ruleset serves loopback addresses, it logs
// what an earlier kube-nft whose ruleset did may have left open.
func newLocalhostPorts(ctx context.Context, c *config.Config, log *zap.Logger) *localhostPorts {
	l := &localhostPorts{log: log, route: c.LocalhostNodePorts}
	if exposure := localhost.Exposure(sysctlRoot); !l.route && exposure != "" {
		log.Warn("hosts on this network may reach programs that listen at loopback addresses", zap.String("notice", exposure))
	}
	var addrs []netip.Addr
	for _, family := range c.LocalhostProxies {
		addrs = append(addrs, layout.LocalhostAddress(family))
	}
	if len(addrs) > 0 {
		l.proxy = localhost.NewProxy(ctx, addrs, log)
	}
	return l
}

// committed follows a commit.
func (l *localhostPorts) committed(delta tracker.Delta) {
	if l.route { // the rule that keeps other hosts out is now in force
		l.route = false
		switch changed, err := localhost.Route(sysctlRoot); {
		case err != nil:
			l.log.Warn("cannot serve node ports at loopback addresses", zap.Error(err))
		case changed:
			l.log.Info("the kernel now routes loopback addresses; our ruleset drops connections to "+
				"them from other hosts", zap.String("sysctl", "net.ipv4.conf.all.route_localnet"), zap.Int("value", 1))
		}
	}
	if l.proxy != nil {
		l.proxy.Apply(delta)
	}
}
