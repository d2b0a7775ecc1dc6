package services

import (
	"context"
	"github.com/kube-nft/kube-nft/nft"
	"net/netip"
	"slices"
)

// A Client is somebody whom a Service port with session affinity remembers.
type Client struct {
	Address  netip.Addr
	Endpoint netip.AddrPort
	Local    bool // it is remembered for connections to local endpoints
	nft.Life
}

// ReadClients returns whom a Service port remembers at this moment, ordered by address. s has to
// be of t, and r be the client that t was read with.
func ReadClients(ctx context.Context, r reader, t *ReadBack, s *Programmed) (clients []Client, err error) {
	for _, memory := range s.AffinityMaps {
		held := t.Sets[memory.Map]
		if held == nil {
			continue
		}
		elements, err := r.Elements(ctx, t.Family, held.Set)
		if err != nil {
			return nil, err
		}
		for key, element := range elements {
			clients = append(clients, clientOf(key, element, memory))
		}
	}
	slices.SortFunc(clients, func(a, b Client) int {
		if c := a.Address.Compare(b.Address); c != 0 {
			return c
		}
		return a.Endpoint.Compare(b.Endpoint)
	})
	return clients, nil
}

func clientOf(key string, element nft.Element, m AffinityMap) (c Client) {
	c.Address, _ = netip.AddrFromSlice([]byte(key))
	addr, _ := netip.AddrFromSlice([]byte(element.Data))
	c.Endpoint = netip.AddrPortFrom(addr, m.Port)
	c.Local = m.Local
	if element.Life != nil {
		c.Life = *element.Life
	}
	return c
}
