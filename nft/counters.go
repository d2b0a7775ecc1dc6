package nft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/tracker"
)

// Connections says how many connections a frontend, or an endpoint at a frontend, was given
// since it exists. A first packet that is sent again counts again if nothing has answered it.
type Connections struct {
	tracker.Frontend
	Name ServiceName
	// Endpoint and Local say which endpoint of which list, in the counts of endpoints.
	Endpoint netip.AddrPort
	Local    bool
	Count    uint64
}

// Connections returns the counts of all frontends of a family, or with endpoints those of
// their endpoints, ordered by frontend. It is empty if the table does not count.
func (k *Kernel) Connections(ctx context.Context, f Family, endpoints bool) (list []Connections, err error) {
	t := NewTable(f)
	if _, err := k.readSets(ctx, t); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("read the counters of connections: %w%s", err, accessRemedy(err))
	}
	for _, node := range []bool{false, true} {
		counts, err := k.connections(ctx, t, node, endpoints)
		if err != nil {
			return nil, fmt.Errorf("read the counters of connections: %w%s", err, accessRemedy(err))
		}
		list = append(list, counts...)
	}
	slices.SortFunc(list, func(a, b Connections) int {
		return cmp.Or(a.Frontend.Compare(b.Frontend), TrueFirst(a.Local, b.Local), a.Endpoint.Compare(b.Endpoint))
	})
	return list, nil
}

// connections returns the counts at addresses, or those at node ports.
func (k *Kernel) connections(ctx context.Context, t *Table, nodePort, endpoints bool) ([]Connections, error) {
	frontends := servicesMap
	if nodePort {
		frontends = nodePortsMap
	}
	held, packets, err := k.counted(ctx, t, frontends)
	if err != nil || !endpoints {
		return frontendCounts(t.Family, frontends, held, packets), err
	}
	var list []Connections
	for _, local := range []bool{false, true} {
		set := listOf(nodePort, local).Map
		chosen, packets, err := k.counted(ctx, t, set)
		if err != nil {
			return nil, err
		}
		for key, n := range packets {
			ep, ok := endpointOf(chosen[key].Data)
			if !ok {
				continue
			}
			list = append(list, Connections{
				Frontend: frontendIn(t.Family, set, key), Name: parseServiceName(held[key[:len(key)-4]].Comment),
				Endpoint: ep, Local: local, Count: n,
			})
		}
	}
	return list, nil
}

func frontendCounts(f Family, set string, held map[string]Element, packets map[string]uint64) (list []Connections) {
	for key, n := range packets {
		list = append(list, Connections{Frontend: frontendIn(f, set, key), Name: parseServiceName(held[key].Comment), Count: n})
	}
	return list
}

// counted reads a set with its counters; packets is nil if it has none.
func (k *Kernel) counted(ctx context.Context, t *Table, name string) (held map[string]Element, packets map[string]uint64, err error) {
	set := t.Sets[name]
	if set == nil || len(set.Set.Key) == 0 {
		return nil, nil, nil
	}
	err = k.retry(ctx, func() error {
		d := newElementDecoder(t.Family, set.Set)
		if set.Set.Counters {
			d.packets = make(map[string]uint64)
		}
		held, err = k.dumpElements(ctx, t.Family, name, d)
		packets = d.packets
		return err
	})
	return held, packets, err
}

// carryCounters makes elements that are added in the place of others go on from the counts of
// those. The kernel deletes and adds an element to change its verdict, and lists of endpoints
// move their last one into a hole; neither is a reason to forget.
//
// The counts are read right before the batch is sent: connections between the two are not
// counted, none is counted twice. Since the count is the kernel's, nothing is lost when this
// process ends. What it costs is one request for each element that is carried over, about
// 10 us; elements that are new or go for good cost nothing.
func (k *Kernel) carryCounters(ctx context.Context, b *Batch) error {
	if !slices.ContainsFunc(b.Ops, func(op Op) bool { return op.Set != nil && op.Set.Counters }) {
		return nil
	}
	deleted := make(map[countedElement]string)
	for i := range b.Ops {
		op := &b.Ops[i]
		if op.Set == nil || !op.Set.Counters {
			continue
		}
		for j := range op.Elements {
			if err := k.carryCounter(ctx, op, &op.Elements[j], deleted); err != nil {
				return err
			}
		}
	}
	return nil
}

// carryCounter notes an element that is deleted, or finds for one that is added the one that
// it takes the place of.
func (k *Kernel) carryCounter(ctx context.Context, op *Op, el *KeyedElement, deleted map[countedElement]string) error {
	what := countedElement{family: op.Family, set: op.Set.Name, what: op.Set.counts(el)}
	if op.Verb != Add {
		deleted[what] = el.Key
		return nil
	}
	key, ok := deleted[what]
	if !ok {
		return nil
	}
	packets, err := k.packets(ctx, op.Family, op.Set, key)
	if err != nil {
		return fmt.Errorf("read a counter of %s %s %s %s: %w", op.Set.noun(), op.Family.NFT(), TableName, op.Set.Name, err)
	}
	if op.Packets == nil {
		op.Packets = make(map[string]uint64)
	}
	op.Packets[el.Key] = packets
	return nil
}

// A countedElement is what the counter of an element is about, wherever the element stands.
type countedElement struct {
	family Family
	set    string
	what   string
}

// counts says what an element counts: the connections of a Service port to a frontend, or
// those to one of its endpoints, whose index does not matter.
func (s *Set) counts(el *KeyedElement) string {
	if s.Verdicts || len(el.Key) < 4 {
		return el.Key + el.Comment
	}
	return el.Key[:len(el.Key)-4] + el.Data
}

// packets reads the counter of one element; zero if there is no such element.
func (k *Kernel) packets(ctx context.Context, f Family, s *Set, key string) (uint64, error) {
	d := newElementDecoder(f, s)
	d.packets = make(map[string]uint64)
	if err := k.element(ctx, f, s, key, d); err != nil && !errors.Is(err, unix.ENOENT) {
		return 0, err
	}
	return d.packets[key], nil
}

// startCounter gives an element a counter that has seen packets already.
func (e *encoder) startCounter(packets uint64) {
	b, err := expr.Marshal(byte(e.family), &expr.Counter{Packets: packets})
	if err != nil {
		e.fail(err)
	}
	e.Head(unix.NFTA_SET_ELEM_EXPR|unix.NLA_F_NESTED, len(b))
	e.Buf = append(e.Buf, b...)
	e.Pad()
}
