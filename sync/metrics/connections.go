package metrics

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// connectionCollector shows the kernel's counters of connections at the time of a scrape. The kernel keeps
// them across restarts of this process. A commit that replaces an element of a frontend, because its verdict
// changes, resets that counter to zero, as Prometheus expects of a counter.
//
// An endpoint may have several places in a list, by its weight or as slots of a hash, and a replaced place
// resets a part of its count. Prometheus would read that as a reset of all of it, so the collector keeps what an
// endpoint's series has lost.
type connectionCollector struct {
	families  []tracker.Family
	endpoints bool

	asks *sync.Mutex // guards what follows
	read ReadConnections
	kept map[tracker.Family]map[endpointSeries]keptCount // of the latest scrape
}

// An endpointSeries names an endpoint of a list.
type endpointSeries struct {
	at       tracker.Frontend
	name     layout.PortName
	endpoint netip.AddrPort
	local    bool
}

// A keptCount is what the kernel counted at the latest scrape, and what it had lost by then.
type keptCount struct{ count, lost uint64 }

// ReadConnections reads the counters of connections from nf_tables.
type ReadConnections func(ctx context.Context, f nft.Family, endpoints bool) ([]readback.Connections, error)

// CountConnections makes scrapes show the connections of each frontend and, if endpoints is set, of
// each endpoint at each frontend: a series for each element. The tables must count them:
// services.Config.Counters and EndpointCounters. Call it once, before the first scrape. read is
// called by one goroutine at a time, and not while Config.Kernel is in use.
func (m *Metrics) CountConnections(read ReadConnections, endpoints bool) {
	m.registry.MustRegister(newConnectionCollector(read, m.families, endpoints, &m.asks))
}

func newConnectionCollector(read ReadConnections, families []tracker.Family, endpoints bool,
	asks *sync.Mutex) *collector {
	c := &connectionCollector{families: families, endpoints: endpoints, asks: asks, read: read}
	descs := []*prometheus.Desc{serviceConnectionsDesc}
	if endpoints {
		descs = append(descs, endpointConnectionsDesc)
	}
	return &collector{descs, c.collectAll}
}

var (
	serviceConnectionsDesc = prometheus.NewDesc("kube_nft_service_connections_total",
		"Connections to each frontend of a Service port, also rejected and dropped ones. Each retry of an "+
			"unanswered first packet counts. The counter restarts at zero when the verdict of the frontend "+
			"changes.",
		[]string{"namespace", "service", "port", "frontend"}, nil)
	endpointConnectionsDesc = prometheus.NewDesc("kube_nft_endpoint_connections_total",
		"Connections for which the rules chose the endpoint, by the frontend's list: all endpoints of the cluster, "+
			"or those on this node. Connections that follow an affinity entry do not count. Where several ports of a Service "+
			"share a list, the endpoint has no port, and the label port is empty.",
		[]string{"namespace", "service", "port", "frontend", "endpoint", "list"}, nil)
)

// collectAll leaves out what it cannot read; the registry reports the error.
func (c *connectionCollector) collectAll(metrics chan<- prometheus.Metric) {
	c.asks.Lock()
	defer c.asks.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), kernelTimeout)
	defer cancel()
	for _, family := range c.families {
		c.collect(ctx, family, false, serviceConnectionsDesc, metrics)
		if c.endpoints {
			c.collect(ctx, family, true, endpointConnectionsDesc, metrics)
		}
	}
}

func (c *connectionCollector) collect(ctx context.Context, f nft.Family, endpoints bool, desc *prometheus.Desc,
	metrics chan<- prometheus.Metric) {
	list, err := c.read(ctx, f, endpoints)
	if err != nil {
		metrics <- prometheus.NewInvalidMetric(desc, err)
		return
	}
	kept := make(map[endpointSeries]keptCount)
	for i := range list {
		n := &list[i]
		if endpoints {
			series := endpointSeries{n.Frontend, n.Name, n.Endpoint, n.Local}
			now, before := keptCount{count: n.Count}, c.kept[f][series]
			if now.lost = before.lost; n.Count < before.count {
				now.lost += before.count - n.Count
			}
			kept[series] = now
			n.Count += now.lost
		}
		labels := []string{n.Name.Namespace, n.Name.Name, n.Name.Port, frontendLabel(n.Frontend)}
		if endpoints {
			list := "cluster"
			if n.Local {
				list = "local"
			}
			labels = append(labels, nft.AddrPortText(n.Endpoint), list)
		}
		metrics <- counter(desc, float64(n.Count), labels...)
	}
	if endpoints {
		if c.kept == nil {
			c.kept = make(map[tracker.Family]map[endpointSeries]keptCount)
		}
		c.kept[f] = kept
	}
}

// frontendLabel is address:port/protocol. A node port has the unspecified address of its
// family, which tells the families apart; a list that many frontends share has a star.
func frontendLabel(at tracker.Frontend) string {
	if !at.Address.IsValid() { // of a list that all frontends share
		return "*"
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(at.Address, at.Port), at.Protocol)
}
