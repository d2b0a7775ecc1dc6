package sync

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// A View answers what was committed, from any goroutine, while the loop's goroutine goes on with the ruleset. A commit
// costs it what the commit changed. NewView makes one.
type View struct {
	mu         sync.RWMutex
	frontends  map[tracker.Frontend]*services.Reached
	resets     int // how many of the frontends have Reset
	clusterIPs map[netip.Addr]struct{}
	cidrs      []netip.Prefix
	nodePorts  []netip.Addr // where node ports are reached, sorted
}

// NewView returns a View of nothing.
func NewView() *View {
	return &View{
		frontends: make(map[tracker.Frontend]*services.Reached), clusterIPs: make(map[netip.Addr]struct{}),
	}
}

// update takes in what changed in the ruleset since the commit before. Nothing in the ruleset may have changed after
// this commit. It calls lost, unless that is nil, for each frontend that a Service port has lost.
func (v *View) update(r *services.Ruleset, nodePorts []netip.Addr, lost func(tracker.Frontend, tracker.PortID)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for at, now := range r.TouchedFrontends() {
		var before services.Reached
		held := v.frontends[at]
		if held != nil {
			before = *held
		}
		if lost != nil && before.Port != now.Port && before.Port != (tracker.PortID{}) {
			lost(at, before.Port)
		}
		if before.Reset {
			v.resets--
		}
		if now.Reset {
			v.resets++
		}
		switch {
		case now.Port == (tracker.PortID{}):
			delete(v.frontends, at)
		case held != nil:
			*held = now
		default:
			held = new(services.Reached)
			*held, v.frontends[at] = now, held
		}
	}
	for _, addr := range r.TouchedClusterIPs() {
		if r.HasClusterIP(addr) {
			v.clusterIPs[addr] = struct{}{}
		} else {
			delete(v.clusterIPs, addr)
		}
	}
	v.cidrs, v.nodePorts = r.ServiceCIDRs(), nodePorts
}

func (v *View) reached(at tracker.Frontend) (services.Reached, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if reached := v.frontends[at]; reached != nil {
		return *reached, true
	}
	return services.Reached{}, false
}

// Owner returns the Service port that has a frontend; false if none does.
func (v *View) Owner(at tracker.Frontend) (tracker.PortID, bool) {
	reached, _ := v.reached(at)
	return reached.Port, reached.Port != tracker.PortID{}
}

// Endpoints implements conntrack.Desired.
func (v *View) Endpoints(at tracker.Frontend) (allowed func(netip.AddrPort) bool, known bool) {
	reached, known := v.reached(at)
	return reached.Serving.Has, known
}

// Admits implements conntrack.Desired. A node port admits this node itself.
func (v *View) Admits(at tracker.Frontend, client netip.Addr) bool {
	reached, _ := v.reached(at)
	return reached.Sources == nil || at.NodePort() && v.NodePortAddress(client) || tracker.Contain(reached.Sources, client)
}

// Resets implements conntrack.Desired.
func (v *View) Resets(at tracker.Frontend) bool {
	reached, _ := v.reached(at)
	return reached.Reset
}

// AnyResets implements conntrack.Desired.
func (v *View) AnyResets() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.resets > 0
}

// ClusterIP implements conntrack.Desired.
func (v *View) ClusterIP(addr netip.Addr) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	_, ok := v.clusterIPs[addr]
	return ok
}

// ServiceCIDR implements conntrack.Desired.
func (v *View) ServiceCIDR(addr netip.Addr) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return tracker.Contain(v.cidrs, addr)
}

// NodePortAddress implements conntrack.Desired.
func (v *View) NodePortAddress(addr netip.Addr) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	_, ok := slices.BinarySearchFunc(v.nodePorts, addr, netip.Addr.Compare)
	return ok
}
