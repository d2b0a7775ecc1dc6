package sync

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// A flowView answers from what was committed which connections may go on, while the loop's
// goroutine goes on with the ruleset. A commit costs it what the commit changed.
type flowView struct {
	mu         sync.RWMutex
	serving    map[tracker.Frontend]tracker.Served
	resets     map[tracker.Frontend]struct{} // those whose connections of TCP and SCTP end with their endpoint
	clusterIPs map[netip.Addr]struct{}
	cidrs      []netip.Prefix
	nodePorts  []netip.Addr // where node ports are reached, sorted
}

// update takes in what changed in the ruleset since the commit before. Nothing in the ruleset
// may have changed after this commit.
func (v *flowView) update(r *services.Ruleset, nodePorts []netip.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.serving == nil {
		v.serving, v.clusterIPs = make(map[tracker.Frontend]tracker.Served), make(map[netip.Addr]struct{})
		v.resets = make(map[tracker.Frontend]struct{})
	}
	for f := range r.TouchedFrontends() {
		if serving, known := r.Serving(f); known {
			v.serving[f] = serving
		} else {
			delete(v.serving, f)
		}
		if r.Resets(f) {
			v.resets[f] = struct{}{}
		} else {
			delete(v.resets, f)
		}
	}
	for addr := range r.TouchedClusterIPs() {
		if r.HasClusterIP(addr) {
			v.clusterIPs[addr] = struct{}{}
		} else {
			delete(v.clusterIPs, addr)
		}
	}
	v.cidrs, v.nodePorts = r.ServiceCIDRs(), nodePorts
}

// Endpoints implements conntrack.Desired.
func (v *flowView) Endpoints(f tracker.Frontend) (allowed func(netip.AddrPort) bool, known bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	serving, known := v.serving[f]
	return serving.Has, known
}

// Resets implements conntrack.Desired.
func (v *flowView) Resets(f tracker.Frontend) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	_, ok := v.resets[f]
	return ok
}

// AnyResets implements conntrack.Desired.
func (v *flowView) AnyResets() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(v.resets) > 0
}

// ClusterIP implements conntrack.Desired.
func (v *flowView) ClusterIP(addr netip.Addr) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	_, ok := v.clusterIPs[addr]
	return ok
}

// ServiceCIDR implements conntrack.Desired.
func (v *flowView) ServiceCIDR(addr netip.Addr) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.ContainsFunc(v.cidrs, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// NodePortAddress implements conntrack.Desired.
func (v *flowView) NodePortAddress(addr netip.Addr) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	_, ok := slices.BinarySearchFunc(v.nodePorts, addr, netip.Addr.Compare)
	return ok
}
