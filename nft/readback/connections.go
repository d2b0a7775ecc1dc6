package readback

import (
	"cmp"
	"context"
	"fmt"
	"maps"
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
	// shared list have no Frontend: they are for all of the Service port's. Where several ports of the Service share
	// the list, the Name has no port and the Endpoint's port is 0.
	Endpoint netip.AddrPort
	Local    bool
	Count    uint64
}

// ReadConnections returns the counts of all frontends of a family, or with endpoints the counts
// of their endpoints, ordered by frontend. It is empty if the table does not count.
func ReadConnections(ctx context.Context, r reader, f nft.Family, endpoints bool) (list []Connections, err error) {
	lists := make(map[string]layout.EndpointMap) // of frontends that have lists of their own
	if endpoints {
		for _, m := range layout.EndpointMaps() {
			lists[m.Name()] = m
		}
	}
	held, err := r.Counted(ctx, f, func(set string) bool {
		_, direct := lists[set]
		return direct || set == layout.ServicesMap || set == layout.NodePortsMap ||
			endpoints && (layout.HoldsLists(set) || strings.HasPrefix(set, layout.PortsPrefix))
	})
	if err != nil {
		return nil, fmt.Errorf("count connections: %w", err)
	}
	users := onlyUsers(held)
	for set, counted := range held {
		m, direct := lists[set]
		if endpoints && !direct && !layout.HoldsLists(set) {
			continue // frontends, which are here for their names
		}
		for key, n := range counted.Packets {
			element, c := counted.Elements[key], Connections{Frontend: layout.FrontendIn(f, set, key), Count: n}
			if endpoints {
				var ok bool
				if c.Endpoint, ok = nft.AddrPortOf(element.Data); !ok {
					continue
				}
			}
			var number uint32
			number, c.Local, _ = layout.InList(set, key)
			if user, ok := users[number]; ok && c.Endpoint.Port() == 0 {
				element.Comment, c.Endpoint = user.Comment, netip.AddrPortFrom(c.Endpoint.Addr(), nft.PortIn(user.Data))
			}
			if direct {
				c.Local, element = m.Local, held[layout.VerdictMap(m.NodePort)].Elements[key[:len(key)-4]]
			}
			c.Name = layout.ParsePortName(element.Comment)
			list = append(list, c)
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

// onlyUsers returns the target of each joint list that one port of a Service has alone, by the number of the list.
func onlyUsers(held map[string]nft.Counted) map[uint32]nft.Element {
	users, shared := make(map[uint32]nft.Element), make(map[uint32]bool)
	for set, ports := range held {
		if !strings.HasPrefix(set, layout.PortsPrefix) {
			continue
		}
		for key, element := range ports.Elements {
			number, _, _ := layout.InList(set, key)
			if first, known := users[number]; known && !first.Equal(element) {
				shared[number] = true
			}
			users[number] = element
		}
	}
	maps.DeleteFunc(users, func(number uint32, user nft.Element) bool { return shared[number] || user.Comment == "" })
	return users
}

// A ruleCounter is what reading refusals needs of the kernel's client.
type ruleCounter interface {
	RuleCounter(ctx context.Context, f nft.Family, chain string) (packets uint64, ok bool, err error)
}

// ReadRefusals returns how many packets of new connections the table of a family has refused since it was
// made, by cause. A cause is missing if another program has removed the chain that counts it.
func ReadRefusals(ctx context.Context, r ruleCounter, f nft.Family) (map[string]uint64, error) {
	causes := make(map[string]uint64)
	for _, cause := range layout.RefusalCauses() {
		n, ok, err := r.RuleCounter(ctx, f, cause.Chain)
		if err != nil {
			return nil, err
		}
		if ok {
			causes[cause.Name] = n
		}
	}
	return causes, nil
}
