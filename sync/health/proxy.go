package health

import (
	"sync"
	"time"

	"github.com/kube-nft/kube-nft/tracker"
)

// A Proxy knows whether changes reach the kernel in time. Its methods may be called from
// any goroutine.
//
// A change that waits longer than the timeout makes the proxy unhealthy; without one it is
// healthy, however long the last commit is ago.
type Proxy struct {
	timeout time.Duration
	node    func() *tracker.Node

	mu       sync.Mutex
	families []tracker.Family
	waiting  bool
	oldest   time.Time // when the earliest change that may not be in the kernel came; if waiting
	newest   time.Time // when the latest change came
	updated  time.Time // when the kernel was found up to date last
	ready    bool      // a commit has succeeded
}

// NewProxy returns a Proxy. A change may wait for less than timeout; node returns this
// node's Node, or nil while there is none, from any goroutine.
func NewProxy(timeout time.Duration, node func() *tracker.Node) *Proxy {
	return &Proxy{timeout: timeout, node: node}
}

// Start says that the sync loop of these families starts, with everything to do. What is
// queued before it does not count: nothing can be written before all objects are known.
func (p *Proxy) Start(families []tracker.Family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.families, p.updated = families, now
	p.queue(now)
}

// Queued says that there is a change for the loop.
func (p *Proxy) Queued() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.families != nil {
		p.queue(time.Now())
	}
}

func (p *Proxy) queue(now time.Time) {
	if !p.waiting {
		p.waiting, p.oldest = true, now
	}
	p.newest = now
}

// Updated says that the kernel has all changes that came before taken. Those that came later
// go on waiting.
func (p *Proxy) Updated(taken time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.updated, p.ready = time.Now(), true
	if p.newest.After(taken) {
		p.oldest = taken
		return
	}
	p.waiting = false
}

// Healthy reports whether no change waits for too long. The state of the Node is not part of
// it.
func (p *Proxy) Healthy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.healthy(time.Now())
}

func (p *Proxy) healthy(now time.Time) bool {
	return !p.waiting || now.Sub(p.oldest) < p.timeout
}

// Ready reports whether a commit has succeeded since the process started.
func (p *Proxy) Ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready
}

// eligible reports whether load balancers may send traffic to this node.
func (p *Proxy) eligible() bool {
	node := p.node()
	return node != nil && !node.Deleting
}
