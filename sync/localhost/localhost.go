// Package localhost serves node ports at loopback addresses: call Route, or make a Proxy with NewProxy and Apply each
// delta.
//
// There are two ways. The ruleset can serve 127.0.0.1, once the kernel routes such packets: Route sets
// the sysctl, which exposes what listens there, so that the ruleset has to keep other hosts out. Or a
// Proxy listens at the loopback address and copies, which takes no sysctl, but serves TCP alone. The
// kernel never routes ::1, so there the second way is the only one.
//
// Clients are on this node itself, for which external traffic policy Local does not hold:
// connections go to the cluster-wide list, as they do for every other address of the node.
package localhost

import (
	"context"
	"net"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/web"
	"github.com/kube-nft/kube-nft/tracker"
)

// A place is a node port in one family.
type place struct {
	family tracker.Family
	number uint16
}

// What a Proxy has at most: connections, which take six files each while they are spliced, and node
// ports. Of the files that kube-nft may open, connections get no more than three eighths, and node
// ports no more than a quarter.
const (
	mostConnections    = 1024
	filesPerConnection = 16
	filesPerPort       = 4
)

// Limits of lines in a minute about connections to node ports: any client on the node can make thousands.
const (
	linesPerNamespace = 10
	linesTotal        = 100
)

// A Proxy serves TCP node ports at loopback addresses. Make it with NewProxy.
//
// All its clients have one address. If they open more connections than it may have, the oldest connection to the node
// port that has most of them ends, in the namespace that has most of them.
type Proxy struct {
	ctx   context.Context
	log   *zap.Logger
	addrs map[tracker.Family]netip.Addr
	pool  *web.Pool
	most  int // node ports, of both families
	lines *quota.Quota

	// Apply's goroutine owns these fields.
	places  map[tracker.PortID]place                          // of each Service port that has a node port
	ports   map[place]map[tracker.PortID]*tracker.ServicePort // that have a node port
	servers map[place]*server
	others  quota.Once // says that other protocols are not served
}

// NewProxy returns a Proxy without node ports, for these addresses, one of a family at most. When ctx
// ends, so do its listeners and connections.
func NewProxy(ctx context.Context, addrs []netip.Addr, log *zap.Logger) *Proxy {
	connections, ports := bounds(web.Files())
	return newProxy(ctx, addrs, log, connections, ports)
}

// bounds returns how many connections and node ports a Proxy has at most.
func bounds(files uint64) (connections, ports int) {
	return int(min(files/filesPerConnection, mostConnections)), int(min(files/filesPerPort, 1<<16))
}

func newProxy(ctx context.Context, addrs []netip.Addr, log *zap.Logger, connections, ports int) *Proxy {
	full := quota.Once{Interval: time.Minute}
	makeRoom := func(victim net.Conn) {
		if full.Report("") {
			log.Warn("node ports at localhost have too many connections: "+
				"closing the oldest connection of the busiest namespace for each new one",
				zap.Stringer("node_port", victim.LocalAddr()), zap.Int("connections", connections))
		}
	}
	p := &Proxy{
		ctx: ctx, log: log, addrs: make(map[tracker.Family]netip.Addr),
		pool:    web.NewOwnedPool(connections, ownerOf, makeRoom),
		most:    ports,
		lines:   &quota.Quota{Interval: time.Minute, PerNamespace: linesPerNamespace, Total: linesTotal},
		places:  make(map[tracker.PortID]place),
		ports:   make(map[place]map[tracker.PortID]*tracker.ServicePort),
		servers: make(map[place]*server),
	}
	for _, addr := range addrs {
		p.addrs[tracker.FamilyOf(addr)] = addr
	}
	return p
}

// Apply applies a commit's changes. Connections under way go on. It must not run in two goroutines
// at a time.
func (p *Proxy) Apply(delta tracker.Delta) {
	touched := make(map[place]bool)
	for id := range delta.Removed {
		p.set(id, nil, touched)
	}
	for _, port := range delta.Changed {
		p.set(port.ID, port, touched)
	}
	for at := range touched {
		p.serve(at, p.oldest(at))
	}
}

// set keeps the value of a Service port if its node port is served here.
func (p *Proxy) set(id tracker.PortID, port *tracker.ServicePort, touched map[place]bool) {
	if !p.addrs[id.Family].IsValid() {
		return
	}
	if id.Protocol != tracker.TCP {
		if port != nil && port.NodePort != 0 && p.others.Report("") {
			p.log.Warn("node ports of UDP and SCTP are not served at localhost; --localhost-nodeports serves them at 127.0.0.1",
				zap.Stringer("first", id))
		}
		return
	}
	if at, ok := p.places[id]; ok {
		touched[at] = true
		delete(p.places, id)
		delete(p.ports[at], id)
	}
	if port == nil || port.NodePort == 0 {
		return
	}
	at := place{id.Family, port.NodePort}
	touched[at] = true
	p.places[id] = at
	if p.ports[at] == nil {
		p.ports[at] = make(map[tracker.PortID]*tracker.ServicePort)
	}
	p.ports[at][id] = port
}

// oldest returns the Service port that gets a node port: the oldest one, as in the ruleset.
func (p *Proxy) oldest(at place) (oldest *tracker.ServicePort) {
	for _, port := range p.ports[at] {
		if oldest == nil || tracker.ByAge(port, oldest) < 0 {
			oldest = port
		}
	}
	if oldest == nil {
		delete(p.ports, at)
	}
	return oldest
}

// serve starts, changes or stops the server of a node port.
func (p *Proxy) serve(at place, port *tracker.ServicePort) {
	s := p.servers[at]
	if port == nil || len(port.Cluster) == 0 {
		if s != nil {
			s.stop()
			delete(p.servers, at)
		}
		return
	}
	address := netip.AddrPortFrom(p.addrs[at.family], at.number)
	if s == nil && len(p.servers) >= p.most {
		if p.lines.Allow(port.ID.Namespace, address.String()) {
			p.log.Warn("node port is not served at localhost: too many node ports for the number of files "+
				"that kube-nft may open; raise that limit",
				zap.Stringer("address", address), zap.Int("served", p.most))
		}
		return
	}
	if s == nil {
		ctx, stop := context.WithCancel(p.ctx)
		s = &server{log: p.log, lines: p.lines, at: address, stop: stop, pool: p.pool, retry: listenRetry}
		p.servers[at] = s
		s.set(port)
		go s.run(ctx, p.ctx)
		return
	}
	s.set(port)
}
