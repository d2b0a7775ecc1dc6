package readback

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// A Client is an address that has an affinity entry of a Service port.
type Client struct {
	// Address is the client's, of IPv6 without bits 64 to 95: see nft.Numbered.
	Address  netip.Addr
	Endpoint netip.AddrPort
	Local    bool // the entry is for connections that local endpoints alone are chosen for
	nft.Life
}

// AffinityEntries are the affinity entries of a table by their numbers.
type AffinityEntries map[uint32][]numberedEntry

// A numberedEntry is an affinity entry of some number.
type numberedEntry struct {
	client netip.Addr
	nft.Element
}

// ReadAffinityEntries returns the affinity entries that there are at this moment. r has to be the
// client that t was read with.
func ReadAffinityEntries(ctx context.Context, r reader, t *Table) (AffinityEntries, error) {
	entries := make(AffinityEntries)
	for name, held := range t.Sets {
		if !held.Set.Dynamic || !strings.HasPrefix(name, layout.AffinityPrefix) {
			continue
		}
		elements, err := r.Elements(ctx, t.Family, held.Set)
		if err != nil {
			return nil, err
		}
		for key, element := range elements {
			if number, client, ok := nft.SplitNumberedKey(t.Family, key); ok {
				entries[number] = append(entries[number], numberedEntry{client, element})
			}
		}
	}
	return entries, nil
}

// Clients lists the clients with an entry of a frontend's Service port, ordered by address.
func (e AffinityEntries) Clients(s *Frontend) (clients []Client) {
	for _, group := range s.AffinityGroups {
		for _, entry := range e[group.Number] {
			addr, _ := netip.AddrFromSlice([]byte(entry.Data))
			c := Client{Address: entry.client, Endpoint: netip.AddrPortFrom(addr, group.Port), Local: group.Local}
			if entry.Life != nil {
				c.Life = *entry.Life
			}
			clients = append(clients, c)
		}
	}
	slices.SortFunc(clients, func(a, b Client) int {
		return cmp.Or(a.Address.Compare(b.Address), a.Endpoint.Compare(b.Endpoint))
	})
	return clients
}
