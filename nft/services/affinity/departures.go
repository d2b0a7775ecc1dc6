package affinity

import (
	"encoding/binary"
	"net/netip"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// A Departure is an endpoint that has left a group, while affinity entries or packets under way may still name it.
// Until the departure ends, the endpoint is in the set of departed endpoints.
type Departure struct {
	Family nft.Family
	Endpoint
	serial uint64 // differs from that of an earlier departure of the same endpoint
}

// Departures are the departures of one table, and keep its set of departed endpoints. Make them with NewDepartures.
// Call Begin and Return as endpoints leave and come back, hand Fresh on after a commit, and call End when the entries
// of a departure are gone.
type Departures struct {
	table   table
	family  nft.Family
	serial  uint64              // of the latest departure
	serials map[Endpoint]uint64 // of the departures that have not ended
	fresh   []Departure
}

// A table is what Departures needs of *change.Journal.
type table interface {
	Put(set, key string, e nft.Element)
	Remove(set, key string)
}

// NewDepartures returns the departures of a table, without any.
func NewDepartures(f nft.Family, t table) *Departures {
	return &Departures{table: t, family: f, serials: make(map[Endpoint]uint64)}
}

// Begin records that an endpoint leaves a group with the next commit.
func (d *Departures) Begin(e Endpoint) {
	if _, known := d.serials[e]; !known {
		d.table.Put(layout.DepartedSet, layout.MemberKey(e.Number, e.Addr), nft.Element{})
	}
	d.serial++
	d.serials[e] = d.serial
	d.fresh = append(d.fresh, Departure{d.family, e, d.serial})
}

// Return records that an endpoint has come back.
func (d *Departures) Return(e Endpoint) {
	if _, known := d.serials[e]; known {
		delete(d.serials, e)
		d.table.Remove(layout.DepartedSet, layout.MemberKey(e.Number, e.Addr))
	}
}

// End ends a departure whose entries are gone. It does nothing if the endpoint has come back or left again.
func (d *Departures) End(departure Departure) {
	if d.serials[departure.Endpoint] == departure.serial {
		d.Return(departure.Endpoint)
	}
}

// Adopt begins a departure for each element that the kernel has in the set of departed endpoints: the process before
// has left them.
func (d *Departures) Adopt(held *nft.Elements) {
	if held == nil {
		return
	}
	for key := range held.Map {
		if addr, ok := netip.AddrFromSlice([]byte(key[min(4, len(key)):])); ok {
			d.Begin(Endpoint{binary.NativeEndian.Uint32([]byte(key)), addr})
		}
	}
}

// Fresh returns the departures that began since Committed.
func (d *Departures) Fresh() []Departure { return d.fresh }

// Committed says that the kernel has the wanted table, and that the caller has handed Fresh on.
func (d *Departures) Committed() { d.fresh = nil }

// Changes are what a commit changes for affinity entries.
type Changes struct {
	Groups   []Group // see Change.Groups
	Departed []Departure
}
