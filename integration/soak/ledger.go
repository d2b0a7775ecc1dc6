package main

import (
	"maps"
	"net/netip"
	"sync"
)

// A ledger knows which endpoints may answer for a Service. API faults delay kube-nft, so every
// endpoint that the Service has had since the kernel was last known to be in step may answer, too.
type ledger struct {
	mu       sync.Mutex
	services map[string]*history
}

// A history is what a ledger holds of one Service.
type history struct {
	slices map[string][]netip.Addr // now
	may    map[netip.Addr]bool     // answer
	left   map[netip.Addr]bool     // of those that may answer: taken out at some time
	leaves map[netip.Addr]int      // how often each was taken out
}

func newLedger() *ledger { return &ledger{services: make(map[string]*history)} }

// set notes the endpoints that a slice is about to have.
func (r *ledger) set(service, slice string, addrs []netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.services[service]
	if h == nil {
		h = &history{slices: make(map[string][]netip.Addr), may: make(map[netip.Addr]bool), left: make(map[netip.Addr]bool),
			leaves: make(map[netip.Addr]int)}
		r.services[service] = h
	}
	before := h.now()
	h.slices[slice] = addrs
	after := h.now()
	for addr := range before {
		if !after[addr] {
			h.left[addr] = true
			h.leaves[addr]++
		}
	}
	maps.Copy(h.may, after)
}

// settled notes that the kernel is in step with what was set.
func (r *ledger) settled() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.services {
		h.may = h.now()
		clear(h.left)
	}
}

// of returns who may answer for a Service, and who of them has been taken out, at this moment.
func (r *ledger) of(service string) (may, left map[netip.Addr]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.services[service]
	if h == nil {
		return nil, nil
	}
	return maps.Clone(h.may), maps.Clone(h.left)
}

// leaves returns how often an endpoint of a Service was taken out; stays reports that it is there,
// and has been since the kernel was last known to be in step.
func (r *ledger) leaves(service string, endpoint netip.Addr) (n int, stays bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.services[service]
	return h.leaves[endpoint], h.now()[endpoint] && !h.left[endpoint]
}

// now returns the endpoints of all slices.
func (h *history) now() map[netip.Addr]bool {
	all := make(map[netip.Addr]bool)
	for _, addrs := range h.slices {
		for _, addr := range addrs {
			all[addr] = true
		}
	}
	return all
}
