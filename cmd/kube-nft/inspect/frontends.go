package inspect

import (
	"net/netip"

	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// frontends are the frontends of our tables, to name connections and packets.
type frontends struct {
	list map[tracker.Frontend]readback.Frontend
	// nodePorts are the addresses at which node ports are served.
	nodePorts map[netip.Addr]bool
}

// frontends returns the frontends of the tables that were read last.
func (i *inspection) frontends() *frontends {
	f := &frontends{list: make(map[tracker.Frontend]readback.Frontend), nodePorts: make(map[netip.Addr]bool)}
	for _, table := range i.tables {
		for _, p := range table.Frontends() {
			f.list[p.Frontend] = p
		}
		for _, addr := range nodePortAddressesOf(table) {
			f.nodePorts[addr] = true
		}
	}
	if len(f.nodePorts) == 0 { // the tables name no addresses: all addresses of the node serve node ports
		addrs, _ := legacy.InterfaceAddresses() // after an error, no connection counts for a node port
		for _, addr := range addrs {
			f.nodePorts[addr] = true
		}
	}
	return f
}

// at returns the frontend for a destination; false if no Service has it.
func (f *frontends) at(to netip.AddrPort, protocol tracker.Protocol) (readback.Frontend, bool) {
	return tracker.LookUp(to, protocol, func(addr netip.Addr) bool { return f.nodePorts[addr] },
		func(at tracker.Frontend) (readback.Frontend, bool) {
			p, ok := f.list[at]
			return p, ok
		})
}
