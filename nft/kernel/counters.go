package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// Counted returns what some sets hold, with the counters of their elements. Sets that do not exist
// or that kube-nft did not write are missing.
func (k *Client) Counted(ctx context.Context, f nft.Family, sets ...string) (map[string]nft.Counted, error) {
	t := nft.NewTable(f)
	err := k.retry(ctx, func() error {
		clear(t.Sets)
		_, err := k.readSets(ctx, t)
		return err
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("read counters of nf_tables: %w%s", err, accessRemedy(err))
	}
	all := make(map[string]nft.Counted)
	for _, name := range sets {
		set := t.Sets[name]
		if set == nil || len(set.Set.Key) == 0 {
			continue
		}
		var c nft.Counted
		err := k.retry(ctx, func() (err error) {
			d := newElementDecoder(f, set.Set)
			if set.Set.Counters {
				d.packets = make(map[string]uint64)
			}
			if err = k.dumpElements(ctx, f, nft.TableName, name, d); err == nil && len(d.Repeated) > 0 {
				err = unix.EINTR // see checkCount
			}
			c.Elements, c.Packets = d.Elements(), d.packets
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read counters of %s %s %s %s: %w%s", set.Set.Noun(), f.NFT(), nft.TableName, name, err, accessRemedy(err))
		}
		all[name] = c
	}
	return all, nil
}

// RuleCounters returns how many packets the counting rules of some chains have seen, by chain. A chain that
// does not exist, or has no such rule, is missing. The cost is one request for each chain.
func (k *Client) RuleCounters(ctx context.Context, f nft.Family, chains ...string) (map[string]uint64, error) {
	counts := make(map[string]uint64)
	for _, chain := range chains {
		which := func(w *attr.Writer) {
			w.Name(unix.NFTA_RULE_TABLE, nft.TableName)
			w.Name(unix.NFTA_RULE_CHAIN, chain)
		}
		err := k.retry(ctx, func() error {
			delete(counts, chain)
			return k.Dump(ctx, unix.NFT_MSG_GETRULE, f, which, func(r attr.Reply) {
				table, of, rule := decodeRule(r.Attributes())
				if n, ok := rule.Counted(f); ok && table == nft.TableName && of == chain {
					counts[chain] += n
				}
			})
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("read counters of chain %s %s %s: %w%s", f.NFT(), nft.TableName, chain, err, accessRemedy(err))
		}
	}
	return counts, nil
}

// carryCounters gives an added element the count of the deleted element that it replaces. Two
// changes replace an element without ending what it counts: the kernel deletes and adds an element
// to change its verdict, and lists of endpoints move their last endpoint into a hole.
//
// The counts are read right before the batch is sent. Connections between the two are not counted;
// none is counted twice. The count is the kernel's, so it outlives this process. The cost is one
// request for each replaced element, about 10 us; elements that are new or go for good cost
// nothing.
func (k *Client) carryCounters(ctx context.Context, b *nft.Batch) error {
	deleted := make(map[countedElement][]string)
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

// carryCounter notes a deleted element. For an added element it finds the deleted ones that it
// replaces.
func (k *Client) carryCounter(ctx context.Context, op *nft.Op, el *nft.KeyedElement, deleted map[countedElement][]string) error {
	what := countedElement{family: op.Family, set: op.Set.Name, what: counts(op.Set, el)}
	if op.Verb != nft.Add {
		deleted[what] = append(deleted[what], el.Key)
		return nil
	}
	keys := deleted[what] // several if an endpoint has several places
	if len(keys) == 0 {
		return nil
	}
	delete(deleted, what)
	if op.Packets == nil {
		op.Packets = make(map[string]uint64)
	}
	for _, key := range keys {
		packets, err := k.packets(ctx, op.Family, op.Set, key)
		if err != nil {
			return fmt.Errorf("read a counter of %s %s %s %s: %w", op.Set.Noun(), op.Family.NFT(), nft.TableName, op.Set.Name, err)
		}
		op.Packets[el.Key] += packets
	}
	return nil
}

// A countedElement says what an element's counter is about, wherever the element stands.
type countedElement struct {
	family nft.Family
	set    string
	what   string
}

// counts says what an element counts: the connections of a Service port to a frontend, or to one of
// its endpoints, whatever the endpoint's index.
func counts(s *nft.Set, el *nft.KeyedElement) string {
	if s.Verdicts || len(el.Key) < 4 {
		return el.Key + el.Comment
	}
	return el.Key[:len(el.Key)-4] + el.Data
}

// packets reads the counter of one element; zero if there is no such element.
func (k *Client) packets(ctx context.Context, f nft.Family, s *nft.Set, key string) (uint64, error) {
	d := newElementDecoder(f, s)
	d.packets = make(map[string]uint64)
	if err := k.element(ctx, f, s, key, d); err != nil && !errors.Is(err, unix.ENOENT) {
		return 0, err
	}
	return d.packets[key], nil
}

// A Fill says how full a dynamic set is.
type Fill struct {
	Count, Size uint32
}

// DynamicFill returns how many elements each dynamic set of a family holds. Where the kernel does
// not count elements, as before about Linux 6.16, it reads maps until limit elements have come;
// maps that it did not read are missing.
func (k *Client) DynamicFill(ctx context.Context, f nft.Family, limit int) (map[string]Fill, error) {
	t := nft.NewTable(f)
	var counts map[string]uint32
	err := k.retry(ctx, func() (err error) {
		clear(t.Sets)
		counts, err = k.readSets(ctx, t)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the sizes of dynamic sets: %w%s", err, accessRemedy(err))
	}
	return dynamicFill(t.Sets, counts, limit, func(s *nft.Set) (map[string]nft.Element, error) { return k.Elements(ctx, f, s) })
}

// dynamicFill reads the sets that counts lacks.
func dynamicFill(sets map[string]*nft.Elements, counts map[string]uint32, limit int, read func(*nft.Set) (map[string]nft.Element, error)) (map[string]Fill, error) {
	usage := make(map[string]Fill)
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		set := sets[name].Set
		if !set.Dynamic {
			continue
		}
		count, counted := counts[name]
		if !counted {
			if limit <= 0 {
				continue
			}
			elements, err := read(set)
			if err != nil {
				return nil, err
			}
			count = uint32(len(elements))
			limit -= len(elements)
		}
		usage[name] = Fill{Count: count, Size: set.Size}
	}
	return usage, nil
}
