package main

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// An observer listens to the notifications that the kernel sends after each commit to
// nf_tables, and tells which addresses have come into a map, or as source ranges, and when.
type observer struct {
	notices *lab.Notices

	mu      sync.Mutex
	waiting map[netip.Addr]time.Time     // when the change was made
	lags    map[netip.Addr]time.Duration // from then until the commit was seen
	commits int
	lost    bool          // the kernel had more notifications than the socket could hold
	news    chan struct{} // closed and replaced when lags has grown
}

// observe starts to listen in the calling thread's namespace.
func observe() (*observer, error) {
	notices, err := lab.Listen()
	if err != nil {
		return nil, err
	}
	o := &observer{notices: notices, waiting: make(map[netip.Addr]time.Time), lags: make(map[netip.Addr]time.Duration),
		news: make(chan struct{})}
	go o.run()
	return o, nil
}

// run receives until the notices are closed.
func (o *observer) run() {
	for {
		notices, err := o.notices.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			o.mu.Lock()
			o.lost = true
			o.mu.Unlock()
		case err != nil:
			return
		default:
			o.note(notices, time.Now())
		}
	}
}

// note counts commits and finds the addresses that elements of maps lead to, and those that
// source ranges begin with.
func (o *observer) note(notices []lab.Notice, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := len(o.lags)
	for _, n := range notices {
		switch n.Kind {
		case unix.NFT_MSG_NEWGEN:
			o.commits++
		case unix.NFT_MSG_NEWSETELEM:
			if !o.mayEnd(n) {
				continue
			}
			for _, data := range n.Values() {
				if len(data) >= 4 {
					o.seen(netip.AddrFrom4([4]byte(data)), now)
				}
			}
			for _, key := range n.Keys() {
				if len(key) == 8 { // the number of the Service comes first
					o.seen(netip.AddrFrom4([4]byte(key[4:])), now)
				}
			}
		}
	}
	if len(o.lags) > before {
		close(o.news)
		o.news = make(chan struct{})
	}
}

// mayEnd reports whether a notice may be about an address that is on its way. A large commit has thousands of notices:
// to decode them all would take longer than the commit, and count as lag. The mutex is held.
func (o *observer) mayEnd(n lab.Notice) bool {
	if len(o.waiting) > 8 { // to search for each takes longer
		return true
	}
	for addr := range o.waiting {
		if n.Holds(addr.AsSlice()) {
			return true
		}
	}
	return false
}

// seen ends the waiting for an address. The mutex is held.
func (o *observer) seen(addr netip.Addr, now time.Time) {
	if made, ok := o.waiting[addr]; ok {
		o.lags[addr] = now.Sub(made)
		delete(o.waiting, addr)
	}
}

// expect says that an address is on its way as of now.
func (o *observer) expect(addr netip.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting[addr] = time.Now()
}

// await waits until an address has come into a map, and returns how long that took.
func (o *observer) await(addr netip.Addr) (time.Duration, error) {
	deadline := time.After(patience)
	for {
		o.mu.Lock()
		lag, ok := o.lags[addr]
		news := o.news
		o.mu.Unlock()
		if ok {
			return lag, nil
		}
		select {
		case <-news:
		case <-deadline:
			return 0, fmt.Errorf("endpoint %s has not come into the kernel within %s", addr, patience)
		}
	}
}

// An observation is what was seen since the one before.
type observation struct {
	lags    []time.Duration
	commits int
	missing int // changes that have not been seen
	lost    bool
}

// take returns what was seen and begins anew.
func (o *observer) take() observation {
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := observation{commits: o.commits, missing: len(o.waiting), lost: o.lost}
	for _, lag := range o.lags {
		seen.lags = append(seen.lags, lag)
	}
	o.commits, o.lost = 0, false
	clear(o.lags)
	clear(o.waiting)
	return seen
}
