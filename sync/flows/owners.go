package flows

import (
	"sync"
	"time"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/tracker"
)

// owners know which Service has a frontend, or had it lately. They have a lock of their own, which nothing holds for
// long: the sync loop says what a Service loses, and does not wait for the counts.
type owners struct {
	committed Committed

	mu   sync.Mutex
	lost map[tracker.Frontend]*lostFrontend
	list []*lostFrontend // in the order of time, some of them not in lost any more
	by   map[string]int  // how many of list a namespace has lost
}

type lostFrontend struct {
	at      tracker.Frontend
	service Service
	when    time.Time
}

// lose takes in that a Service has lost a frontend.
func (o *owners) lose(at tracker.Frontend, service Service) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.by[service.Namespace] >= mostLost-len(o.list) {
		delete(o.lost, at)
		return
	}
	o.by[service.Namespace]++
	o.lost[at] = &lostFrontend{at, service, time.Now()}
	o.list = append(o.list, o.lost[at])
}

// of returns the Service that a connection was made to.
func (o *owners) of(f *conntrack.Flow) (Service, bool) {
	return tracker.LookUp(f.Original.Destination, f.Original.Protocol, o.committed.NodePortAddress,
		func(at tracker.Frontend) (Service, bool) {
			if port, ok := o.committed.Owner(at); ok {
				return Service{port.Namespace, port.Service}, true
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			if lost := o.lost[at]; lost != nil {
				return lost.service, true
			}
			return Service{}, false
		})
}

// mostForgotten is how many frontends are forgotten before others get the lock.
const mostForgotten = 1000

// forget forgets the frontends that were lost long ago.
func (o *owners) forget(now time.Time) {
	for more := true; more; {
		o.mu.Lock()
		n := 0
		for n < min(len(o.list), mostForgotten) && now.Sub(o.list[n].when) > lostFor {
			old := o.list[n]
			if o.lost[old.at] == old {
				delete(o.lost, old.at)
			}
			if o.by[old.service.Namespace]--; o.by[old.service.Namespace] == 0 {
				delete(o.by, old.service.Namespace)
			}
			n++
		}
		o.list = o.list[n:]
		more = n == mostForgotten
		o.mu.Unlock()
	}
}
