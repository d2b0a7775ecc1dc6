package inspect

import (
	"context"
	"errors"
	"net/netip"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// An inspection looks at the kernel's tables. It needs neither the daemon nor the API.
type inspection struct {
	kernel *kernel.Client
	tables map[nft.Family]*readback.Table
	// generation is the number of the latest commit to nf_tables that the tables contain.
	generation uint32
}

// look reads our tables in this network namespace. The caller closes the kernel.
func look(ctx context.Context) (*inspection, error) {
	kernel, err := kernel.Open()
	if err != nil {
		return nil, err
	}
	i := &inspection{kernel: kernel}
	if err := i.read(ctx); err != nil {
		return nil, errors.Join(err, kernel.Close())
	}
	return i, nil
}

// read reads our tables, again if they have been read before.
func (i *inspection) read(ctx context.Context) error {
	tables, generation, err := i.kernel.Read(ctx)
	if err != nil {
		return err
	}
	i.tables, i.generation = make(map[nft.Family]*readback.Table, len(tables)), generation
	for f, table := range tables {
		i.tables[f] = readback.New(table)
	}
	return nil
}

// readIfChanged reads our tables again if another program has committed since.
func (i *inspection) readIfChanged(ctx context.Context) (changed bool, err error) {
	generation, err := i.kernel.Generation(ctx)
	if err != nil || generation == i.generation {
		return false, err
	}
	return true, i.read(ctx)
}

// lookAtTables is look, and fails if there is no table.
func lookAtTables(ctx context.Context) (*inspection, error) {
	i, err := look(ctx)
	if err == nil && len(i.tables) == 0 {
		err = errors.Join(errors.New("this network namespace has no table kube-nft: "+
			"no kube-nft has programmed it; run this where the daemon runs, in the node's network namespace"), i.kernel.Close())
	}
	return i, err
}

func (i *inspection) close() { i.kernel.Close() }

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
