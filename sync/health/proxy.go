// Package health reports whether this node's proxy works: to the kubelet and to load balancers as
// /healthz, /livez and /readyz (Proxy), and to load balancers of one Service on its health-check
// node port (Services). Make them with NewProxy and NewServices, give Proxy.Updated the time of each commit and
// Services.Apply each delta, and serve the handlers of Proxy. Status codes, headers and bodies are kube-proxy's.
package health

import (
	"sync"
	"time"

	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Proxy knows whether changes reach the kernel in time. Its methods may be called from
// any goroutine.
//
// A change that waits longer than the timeout makes the proxy unhealthy. Without a waiting change
// it is healthy, however old the last commit is.
type Proxy struct {
	timeout time.Duration
	node    func() *tracker.Node
	queue   *proxysync.Queue

	mu       sync.Mutex
	families []tracker.Family
	started  time.Time // zero before Start
	updated  time.Time // when the kernel was last found up to date
	ready    bool      // a commit has succeeded
	held     bool      // the safety check stops commits
}

// NewProxy returns a Proxy. A change may wait in queue for less than timeout; node returns
// this node's Node, or nil while there is none, from any goroutine.
func NewProxy(timeout time.Duration, node func() *tracker.Node, queue *proxysync.Queue) *Proxy {
	return &Proxy{timeout: timeout, node: node, queue: queue}
}

// Start says that the sync loop of these families starts, with everything to do. Changes queued
// before do not count: nothing can be written before all objects are known.
func (p *Proxy) Start(families []tracker.Family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.families, p.started = families, time.Now()
	p.updated = p.started
	p.queue.Notify()
}

// Updated says that the kernel has all changes that came before taken. Later changes go on waiting.
func (p *Proxy) Updated(taken time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.updated, p.ready = time.Now(), true
	p.queue.Served(taken)
}

// Hold says whether the safety check stops commits. What the kernel holds serves meanwhile: the proxy
// is healthy, for a restart changes nothing, and load balancers that withdrew every node of a cluster
// at once would make an outage out of it. It is not ready before a commit, so that an update of all
// nodes stops at the first.
func (p *Proxy) Hold(held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = held
}

// Healthy reports whether no change waits for too long, whatever the state of the Node.
func (p *Proxy) Healthy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.healthy(time.Now())
}

func (p *Proxy) healthy(now time.Time) bool {
	oldest, _ := p.queue.Waiting()
	if p.started.IsZero() || oldest.IsZero() || p.held {
		return true
	}
	if oldest.Before(p.started) {
		oldest = p.started
	}
	return now.Sub(oldest) < p.timeout
}

// Ready reports whether a commit has succeeded since the process started.
func (p *Proxy) Ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready
}

// Eligible reports whether load balancers may send traffic to this node.
func (p *Proxy) Eligible() bool {
	node := p.node()
	return node != nil && node.Ineligible == ""
}
