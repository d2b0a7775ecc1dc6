package readback

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
	Counted(ctx context.Context, f nft.Family, of func(set string) bool) (map[string]nft.Counted, error)
	Elements(ctx context.Context, f nft.Family, s *nft.Set) (map[string]nft.Element, error)
}

// Connections says how many connections a frontend, or an endpoint at a frontend, was given
// since it exists. A first packet that is sent again counts again if nothing has answered it.
type Connections struct {
	tracker.Frontend
	Name layout.PortName
	// Endpoint and Local say which endpoint of which list, in the counts of endpoints. Those of a
	// shared list have no Frontend: they are for all of the Service port's. Where ports of the Service share the list,
	// the Name has no port and the Endpoint's port is 0.
	Endpoint netip.AddrPort
	Local    bool
	Count    uint64
}

// ReadConnections returns the counts of all frontends of a family, or with endpoints the counts
// of their endpoints, ordered by frontend. It is empty if the table does not count.
func ReadConnections(ctx context.Context, r reader, f nft.Family, endpoints bool) (list []Connections, err error) {
	sets := []string{layout.ServicesMap, layout.NodePortsMap}
	shared := func(set string) bool {
		return strings.HasPrefix(set, layout.ListsPrefix) || strings.HasPrefix(set, layout.SlotsPrefix) ||
			strings.HasPrefix(set, layout.AddressesPrefix)
	}
	if endpoints {
		for _, m := range layout.EndpointMaps() {
			sets = append(sets, m.Name())
		}
	}
	held, err := r.Counted(ctx, f, func(set string) bool {
		return slices.Contains(sets, set) || endpoints && shared(set)
	})
	if err != nil {
		return nil, fmt.Errorf("count connections: %w", err)
	}
	if !endpoints {
		for _, frontends := range sets {
			for key, n := range held[frontends].Packets {
				list = append(list, Connections{
					Frontend: layout.FrontendIn(f, frontends, key), Name: layout.ParsePortName(held[frontends].Elements[key].Comment),
					Count: n,
				})
			}
		}
	}
	for _, m := range layout.EndpointMaps() {
		set, frontends := m.Name(), held[layout.VerdictMap(m.NodePort)]
		for key, n := range held[set].Packets {
			ep, ok := nft.AddrPortOf(held[set].Elements[key].Data)
			if !ok {
				continue
			}
			list = append(list, Connections{
				Frontend: layout.FrontendIn(f, set, key), Name: layout.ParsePortName(frontends.Elements[key[:len(key)-4]].Comment),
				Endpoint: ep, Local: m.Local, Count: n,
			})
		}
	}
	for set, counted := range held {
		if !shared(set) {
			continue
		}
		for key, n := range counted.Packets {
			element := counted.Elements[key]
			ep, ok := nft.AddrPortOf(element.Data)
			if strings.HasPrefix(set, layout.AddressesPrefix) { // the ports stand elsewhere
				var addr netip.Addr
				addr, ok = netip.AddrFromSlice([]byte(element.Data))
				ep = netip.AddrPortFrom(addr, 0)
			}
			if ok {
				local := layout.IsLocalNumber(binary.NativeEndian.Uint32([]byte(key)))
				list = append(list, Connections{Name: layout.ParsePortName(element.Comment), Endpoint: ep, Local: local, Count: n})
			}
		}
	}
	order := func(a, b Connections) int {
		return cmp.Or(a.Frontend.Compare(b.Frontend), nft.TrueFirst(a.Local, b.Local), a.Endpoint.Compare(b.Endpoint),
			strings.Compare(a.Name.String(), b.Name.String()))
	}
	slices.SortFunc(list, order)
	sums := list[:0] // an endpoint may have several places
	for _, c := range list {
		if n := len(sums); n > 0 && order(sums[n-1], c) == 0 {
			sums[n-1].Count += c.Count
			continue
		}
		sums = append(sums, c)
	}
	return sums, nil
}
