package daemon

import (
	"context"
	"runtime/debug"
	"strings"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/sync/metrics"
)

// newMetrics returns the metrics that the settings request. m has its other parts already, but events.
func (d *daemon) newMetrics(m *monitor) *metrics.Metrics {
	var scraped metrics.Kernel
	if m.scraped != nil {
		scraped = m.scraped
	}
	build, known := debug.ReadBuildInfo()
	if known {
		build.Main.Version = config.Build().GitVersion // a source archive knows what Go does not
	}
	component := config.Build()
	all := metrics.New(metrics.Config{
		Families: m.families, Changes: d.tracker.Changes, Queue: d.queue, Kernel: scraped,
		Unserved: m.services.Unserved, NodeMissing: nodeMissing(d.tracker),
		Build: build, Component: &component, Gates: gates(d.config),
		Connections: func() (entries, limit int64, err error) { return conntrack.Usage(sysctlRoot) },
		Ejected:     d.ejectedByService,
	})
	if d.shadow != nil {
		all.Shadow(d.shadow.Metrics)
	}
	if m.counted != nil {
		all.CountConnections(
			func(ctx context.Context, f nft.Family, endpoints bool) ([]readback.Connections, error) {
				return readback.ReadConnections(ctx, m.counted, f, endpoints)
			}, d.config.EndpointCounters)
	}
	if d.flows != nil {
		all.CountFlows(d.flows)
	}
	return all
}

// gates lists the feature gates for metrics, with their stages as Kubernetes' components name them.
func gates(c *config.Config) (list []metrics.Gate) {
	for _, gate := range config.Gates {
		stage := strings.ToUpper(gate.Stage)
		if strings.Contains(stage, " ") { // GA in 1.33, since 1.7
			stage = ""
		}
		list = append(list, metrics.Gate{Name: gate.Name, Stage: stage, On: c.Gates[gate.Name]})
	}
	return list
}
