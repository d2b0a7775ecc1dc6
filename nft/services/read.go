package services

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// A reader is what reading the state of Services needs of the kernel's client.
type reader interface {
	Counted(ctx context.Context, f nft.Family, sets ...string) (map[string]nft.Counted, error)
	Elements(ctx context.Context, f nft.Family, s *nft.Set) (map[string]nft.Element, error)
}

// Connections says how many connections a frontend, or an endpoint at a frontend, was given
// since it exists. A first packet that is sent again counts again if nothing has answered it.
type Connections struct {
	tracker.Frontend
	Name layout.PortName
	// Endpoint and Local say which endpoint of which list, in the counts of endpoints. Those of a
	// shared list have no Frontend: they are for all of the Service port's.
	Endpoint netip.AddrPort
	Local    bool
	Count    uint64
}

// ReadConnections returns the counts of all frontends of a family, or with endpoints the counts
// of their endpoints, ordered by frontend. It is empty if the table does not count.
func ReadConnections(ctx context.Context, r reader, f nft.Family, endpoints bool) (list []Connections, err error) {
	sets := []string{layout.ServicesMap, layout.NodePortsMap}
	if endpoints {
		sets = append(sets, layout.EndpointsMap, layout.LocalEndpointsMap, layout.NodePortEndpointsMap, layout.NodePortLocalEndpointsMap)
		sets = append(sets, layout.ListsMaps()...)
	}
	held, err := r.Counted(ctx, f, sets...)
	if err != nil {
		return nil, fmt.Errorf("count connections: %w", err)
	}
	for _, nodePort := range []bool{false, true} {
		frontends := layout.VerdictMap(nodePort)
		if !endpoints {
			for key, n := range held[frontends].Packets {
				list = append(list, Connections{
					Frontend: layout.FrontendIn(f, frontends, key), Name: layout.ParsePortName(held[frontends].Elements[key].Comment), Count: n,
				})
			}
			continue
		}
		for _, local := range []bool{false, true} {
			set := layout.EndpointsMapOf(nodePort, local)
			for key, n := range held[set].Packets {
				ep, ok := nft.AddrPortOf(held[set].Elements[key].Data)
				if !ok {
					continue
				}
				frontend := key[:len(key)-4]
				list = append(list, Connections{
					Frontend: layout.FrontendIn(f, set, key), Name: layout.ParsePortName(held[frontends].Elements[frontend].Comment),
					Endpoint: ep, Local: local, Count: n,
				})
			}
		}
	}
	for _, set := range layout.ListsMaps() {
		for key, n := range held[set].Packets {
			element := held[set].Elements[key]
			if ep, ok := nft.AddrPortOf(element.Data); ok {
				local := layout.IsLocalNumber(binary.NativeEndian.Uint32([]byte(key)))
				list = append(list, Connections{Name: layout.ParsePortName(element.Comment), Endpoint: ep, Local: local, Count: n})
			}
		}
	}
	slices.SortFunc(list, func(a, b Connections) int {
		return cmp.Or(a.Frontend.Compare(b.Frontend), nft.TrueFirst(a.Local, b.Local), a.Endpoint.Compare(b.Endpoint))
	})
	return list, nil
}

// A Client is somebody who has an affinity entry of a Service port.
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
func ReadAffinityEntries(ctx context.Context, r reader, t *ReadBack) (AffinityEntries, error) {
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
func (e AffinityEntries) Clients(s *Programmed) (clients []Client) {
	for _, group := range s.AffinityGroups {
		for _, entry := range e[group.Number] {
			clients = append(clients, clientOf(entry.client, entry.Element, group))
		}
	}
	slices.SortFunc(clients, func(a, b Client) int {
		return cmp.Or(a.Address.Compare(b.Address), a.Endpoint.Compare(b.Endpoint))
	})
	return clients
}

func clientOf(client netip.Addr, element nft.Element, g AffinityGroup) (c Client) {
	c.Address = client
	addr, _ := netip.AddrFromSlice([]byte(element.Data))
	c.Endpoint = netip.AddrPortFrom(addr, g.Port)
	c.Local = g.Local
	if element.Life != nil {
		c.Life = *element.Life
	}
	return c
}
