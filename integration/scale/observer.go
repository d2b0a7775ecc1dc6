package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// An observer listens to the notifications that the kernel sends after each commit to
// nf_tables, and tells which addresses have come into a map and when.
type observer struct {
	fd int

	mu      sync.Mutex
	waiting map[netip.Addr]time.Time     // when the change was made
	lags    map[netip.Addr]time.Duration // from then until the commit was seen
	commits int
	lost    bool          // the kernel had more notifications than the socket could hold
	news    chan struct{} // closed and replaced when lags has grown
}

const (
	groupNFTables      = 7 // NFNLGRP_NFTABLES in linux/netfilter/nfnetlink.h
	observerBuffer     = 64 << 20
	messageNewElements = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSETELEM
	messageNewGen      = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
)

// observe starts to listen in the calling thread's namespace.
func observe() (*observer, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("observe nf_tables: %w", err)
	}
	o := &observer{fd: fd, waiting: make(map[netip.Addr]time.Time), lags: make(map[netip.Addr]time.Duration), news: make(chan struct{})}
	for _, step := range []func() error{
		func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, observerBuffer) },
		func() error { return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) },
		func() error {
			return unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, groupNFTables)
		},
		func() error {
			return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000})
		},
	} {
		if err := step(); err != nil {
			unix.Close(fd)
			return nil, fmt.Errorf("observe nf_tables: %w", err)
		}
	}
	return o, nil
}

// run receives until done is closed.
func (o *observer) run(done <-chan struct{}) {
	defer unix.Close(o.fd)
	buf := make([]byte, 1<<20)
	for {
		n, _, err := unix.Recvfrom(o.fd, buf, 0)
		now := time.Now()
		select {
		case <-done:
			return
		default:
		}
		switch err {
		case nil:
			o.messages(buf[:n], now)
		case unix.ENOBUFS:
			o.mu.Lock()
			o.lost = true
			o.mu.Unlock()
		}
	}
}

func (o *observer) messages(b []byte, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := len(o.lags)
	for len(b) >= 20 {
		n := int(binary.NativeEndian.Uint32(b))
		if n < 20 || n > len(b) {
			break
		}
		switch binary.NativeEndian.Uint16(b[4:]) {
		case messageNewGen:
			o.commits++
		case messageNewElements:
			o.elements(b[20:n], now)
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	if len(o.lags) > before {
		close(o.news)
		o.news = make(chan struct{})
	}
}

// elements notes the addresses that elements of a map hold as data.
func (o *observer) elements(b []byte, now time.Time) {
	each(find(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_ uint16, element []byte) {
		data := find(find(element, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VALUE)
		if len(data) < 4 {
			return
		}
		addr := netip.AddrFrom4([4]byte(data))
		if made, ok := o.waiting[addr]; ok {
			o.lags[addr] = now.Sub(made)
			delete(o.waiting, addr)
		}
	})
}

// each calls f for every attribute.
func each(b []byte, f func(typ uint16, value []byte)) {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&0x3fff, b[4:n]) // NLA_TYPE_MASK
		b = b[min((n+3)&^3, len(b)):]
	}
}

// find returns the value of the first attribute of a type, nil if there is none.
func find(b []byte, typ uint16) (found []byte) {
	each(b, func(t uint16, value []byte) {
		if t == typ && found == nil {
			found = value
		}
	})
	return found
}

// expect says that an address is on its way as of now.
func (o *observer) expect(addr netip.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting[addr] = time.Now()
}

// await waits until an address has come into a map, and returns how long that took.
func (o *observer) await(addr netip.Addr, patience time.Duration) (time.Duration, error) {
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
