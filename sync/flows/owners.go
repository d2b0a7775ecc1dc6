package flows

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/tracker"
)

// owners know which Service has a frontend. They have a lock of their own, which nothing holds for long: the sync loop
// tells them what it has changed, and does not wait for the counts.
type owners struct {
	mu        sync.RWMutex
	at        map[tracker.Frontend]*owner
	frontends map[Service]int // how many each has now
	gone      []goneFrontend  // in the order of time
	nodePorts []netip.Addr    // where node ports are reached, sorted
}

// An owner is the Service of a frontend. It stays for a while after the frontend has lost it.
type owner struct {
	Service
	gone bool
}

type goneFrontend struct {
	at    tracker.Frontend
	owner *owner
	when  time.Time
}

// set says which Service has a frontend from now on; the zero Service is none.
func (o *owners) set(at tracker.Frontend, service Service) {
	o.mu.Lock()
	defer o.mu.Unlock()
	have := o.at[at]
	switch {
	case have != nil && !have.gone && have.Service == service:
		return
	case have != nil && !have.gone:
		if o.frontends[have.Service]--; o.frontends[have.Service] == 0 {
			delete(o.frontends, have.Service)
		}
	}
	switch {
	case service != Service{}:
		o.at[at] = &owner{Service: service}
		o.frontends[service]++
	case have == nil || have.gone:
	case len(o.gone) == mostGone:
		delete(o.at, at)
	default:
		have.gone = true
		o.gone = append(o.gone, goneFrontend{at, have, time.Now()})
	}
}

func (o *owners) setNodePorts(addrs []netip.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nodePorts = addrs
}

// of returns the Service that a connection was made to.
func (o *owners) of(f *conntrack.Flow) (Service, bool) {
	to, protocol := f.Original.Destination, f.Original.Protocol
	o.mu.RLock()
	defer o.mu.RUnlock()
	have := o.at[tracker.Frontend{Address: to.Addr(), Protocol: protocol, Port: to.Port()}]
	if have == nil {
		if _, ok := slices.BinarySearchFunc(o.nodePorts, to.Addr(), netip.Addr.Compare); ok {
			have = o.at[tracker.NodePort(f.Family, protocol, to.Port())]
		}
	}
	if have == nil {
		return Service{}, false
	}
	return have.Service, true
}

// has reports whether a Service has a frontend now.
func (o *owners) has(service Service) bool {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.frontends[service] > 0
}

// mostForgotten is how many frontends are forgotten before others get the lock.
const mostForgotten = 1000

// forget forgets the frontends that have had no owner for long.
func (o *owners) forget(now time.Time) {
	for more := true; more; {
		o.mu.Lock()
		n := 0
		for n < min(len(o.gone), mostForgotten) && now.Sub(o.gone[n].when) > goneFor {
			if old := o.gone[n]; o.at[old.at] == old.owner {
				delete(o.at, old.at)
			}
			n++
		}
		o.gone = o.gone[n:]
		more = n == mostForgotten
		o.mu.Unlock()
	}
}
