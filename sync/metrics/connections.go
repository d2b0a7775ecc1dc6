package metrics

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// connectionCollector shows the kernel's counters of connections at the time of a scrape. It keeps
// nothing: commits carry counts over from element to element. So a series grows as long as the
// frontend belongs to the Service, even across restarts of this process. It starts anew with the
// frontend, and with a new table.
type connectionCollector struct {
	families  []tracker.Family
	endpoints bool

	mu   sync.Mutex
	read ReadConnections
}

// ReadConnections reads the counters of connections from nf_tables.
type ReadConnections func(ctx context.Context, f nft.Family, endpoints bool) ([]readback.Connections, error)

// CountConnections makes scrapes show the connections of each frontend and, if endpoints is set, of
// each endpoint at each frontend: a series for each element. The tables must count them:
// services.Config.Counters and EndpointCounters. Call it once, before the first scrape. read is
// called by one goroutine at a time.
func (m *Metrics) CountConnections(read ReadConnections, endpoints bool) {
	m.registry.MustRegister(&connectionCollector{read: read, families: m.families, endpoints: endpoints})
}

var (
	serviceConnectionsDesc = prometheus.NewDesc("kube_nft_service_connections_total",
		"Connections to each frontend of a Service port, with those that were rejected or dropped. A first packet that is sent again because none answered counts again.",
		[]string{"namespace", "service", "port", "frontend"}, nil)
	endpointConnectionsDesc = prometheus.NewDesc("kube_nft_endpoint_connections_total",
		"Connections that each endpoint was chosen for, in the cluster-wide list of a frontend or in the one of this node. Connections that session affinity sends to the endpoint of an earlier one are not chosen.",
		[]string{"namespace", "service", "port", "frontend", "endpoint", "list"}, nil)
)

func (c *connectionCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- serviceConnectionsDesc
	if c.endpoints {
		descs <- endpointConnectionsDesc
	}
}

// Collect leaves out what it cannot read; the registry reports the error.
func (c *connectionCollector) Collect(metrics chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), kernelTimeout)
	defer cancel()
	for _, family := range c.families {
		c.collect(ctx, nft.Family(family), false, serviceConnectionsDesc, metrics)
		if c.endpoints {
			c.collect(ctx, nft.Family(family), true, endpointConnectionsDesc, metrics)
		}
	}
}

func (c *connectionCollector) collect(ctx context.Context, f nft.Family, endpoints bool, desc *prometheus.Desc, metrics chan<- prometheus.Metric) {
	list, err := c.read(ctx, f, endpoints)
	if err != nil {
		metrics <- prometheus.NewInvalidMetric(desc, err)
		return
	}
	for _, n := range list {
		labels := []string{n.Name.Namespace, n.Name.Name, n.Name.Port, frontendLabel(n.Frontend)}
		if endpoints {
			list := "cluster"
			if n.Local {
				list = "local"
			}
			labels = append(labels, n.Endpoint.String(), list)
		}
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n.Count), labels...)
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
