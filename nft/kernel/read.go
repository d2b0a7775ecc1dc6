package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/wire"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// maxReads is how often a read is tried while others change nf_tables.
const maxReads = 16

// maxDynamicReads is how often Elements reads a set that packets change.
const maxDynamicReads = 3

// Read returns our tables as the kernel holds them, and their generation. A table that does not
// exist is missing. Read leaves out the elements of dynamic sets; Elements reads them. What
// kube-nft never writes equals nothing that it would write: a foreign set has an empty Key, a rule
// is compared by its expressions, flags of the table show in its Comment. Read passes over objects
// and flowtables: they have no effect without a rule.
//
// If another program commits meanwhile, Read goes on beside a Monitor, which says whether the commit was about our
// tables.
func (k *Client) Read(ctx context.Context) (t nft.Tables, generation uint32, err error) {
	moved := func(before, after uint32) bool { return before != after }
	t, generation, err = k.readOnce(ctx, moved)
	if err == nil {
		return t, generation, nil
	}
	if errors.Is(err, unix.EINTR) {
		if m, err := NewMonitor(k); err == nil {
			defer context.AfterFunc(ctx, func() { _ = m.Close() })()
			defer func() { _ = m.Close() }()
			if m.Join() == nil {
				moved = m.changed
			}
		}
	}
	return k.ReadUnless(ctx, moved)
}

// ReadUnless is Read beside programs that commit to tables of their own: it reads again only if changed
// says that our tables changed between the generations before and after the reading. The generation that
// it returns is the later one.
func (k *Client) ReadUnless(ctx context.Context,
	changed func(before, after uint32) bool) (t nft.Tables, generation uint32, err error) {
	err = k.retry(ctx, func() error {
		t, generation, err = k.readOnce(ctx, changed)
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read nf_tables: %w%s", err, accessRemedy(err))
	}
	return t, generation, nil
}

// Elements returns what a set holds at this moment, with the ages of elements that expire. A dynamic
// set may list one twice. As packets change it all the time, it does not matter if another program commits
// meanwhile; and if it changes during each of maxDynamicReads dumps, Elements returns what any of them has: an element
// that packets have moved may be missing in one.
func (k *Client) Elements(ctx context.Context, f nft.Family, s *nft.Set) (elements map[string]nft.Element, err error) {
	var before map[string]bool
	reads := 0
	err = k.retry(ctx, func() error {
		d := wire.NewElementDecoder(f, s)
		err := k.dumpElements(ctx, f, s.Name, d)
		if s.Dynamic && errors.Is(err, unix.EINTR) {
			err = nil
		}
		reads++
		enough := s.Dynamic && (reads == maxDynamicReads || maps.Equal(before, d.Repeated))
		if err == nil && len(d.Repeated) > 0 && !enough {
			err = unix.EINTR // see checkCount; it does not repeat the same elements in the next dump
		}
		before = d.Repeated
		if elements == nil || !s.Dynamic {
			elements = d.Elements()
		} else {
			maps.Copy(elements, d.Elements())
		}
		return err
	})
	if err != nil {
		return nil, setError("read", f, s, err)
	}
	return elements, nil
}

// Count returns how many elements a set holds at this moment. known is false if the kernel does not say
// it, as before about Linux 6.16.
func (k *Client) Count(ctx context.Context, f nft.Family, s *nft.Set) (n uint32, known bool, err error) {
	err = k.request(ctx, unix.NFT_MSG_GETSET, 0, f, About(nft.TableName, s.Name), func(r attr.Reply) {
		n, known = wire.SetCount(r.Attributes())
	})
	if err != nil {
		return 0, false, setError("count the elements of", f, s, err)
	}
	return n, known, nil
}

// Generation returns the number of the latest commit to nf_tables in this network namespace,
// by any program.
func (k *Client) Generation(ctx context.Context) (uint32, error) {
	generation, err := k.generation(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the generation of nf_tables: %w%s", err, accessRemedy(err))
	}
	return generation, nil
}

func (k *Client) generation(ctx context.Context) (generation uint32, err error) {
	err = k.request(ctx, unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, About(), func(r attr.Reply) {
		generation, _, _ = wire.DecodeGeneration(r.Attributes())
	})
	return generation, err
}

// retry repeats read while nf_tables changes under it. Later attempts come after a pause: a start
// of another program may be a dozen commits in a row.
func (k *Client) retry(ctx context.Context, read func() error) error {
	for i := range maxReads {
		if err := read(); !errors.Is(err, unix.EINTR) || ctx.Err() != nil {
			return err
		}
		if i >= maxReads/4 {
			retry.Pause(ctx, time.Duration(i)*time.Millisecond)
		}
	}
	return fmt.Errorf("nf_tables changed during each of %d attempts: %w", maxReads, unix.EINTR)
}

// readOnce returns EINTR if our tables changed meanwhile.
//
// The kernel marks a dump as interrupted whenever any table changed. readOnce does not look at that mark.
// If only other tables change, the dumps of our rules, sets and elements are complete: each goes on at a
// number of objects to skip, counts only objects of our table, and their order stays. The dump of chains
// counts those of all tables; see readChains. An element dump whose hash table grows repeats elements; see
// checkCount.
func (k *Client) readOnce(ctx context.Context, changed func(before, after uint32) bool) (nft.Tables, uint32, error) {
	before, err := k.generation(ctx)
	if err != nil {
		return nil, 0, err
	}
	tables, uses, err := k.readTables(ctx)
	for f, table := range tables {
		if err == nil {
			err = k.readTable(ctx, table, uses[f])
		}
	}
	after, genErr := k.generation(ctx)
	switch {
	case genErr != nil:
		return nil, 0, genErr
	case changed(before, after):
		return nil, 0, unix.EINTR
	}
	return tables, after, err
}

// readTables asks for our tables by name, because a dump may leave out a table when another one goes. uses
// says how many chains, sets and objects each has.
func (k *Client) readTables(ctx context.Context) (tables nft.Tables, uses map[nft.Family]int, err error) {
	tables, uses = make(nft.Tables), make(map[nft.Family]int)
	for _, f := range nft.Families {
		err := k.request(ctx, unix.NFT_MSG_GETTABLE, 0, f, About(nft.TableName), func(r attr.Reply) {
			_, tables[f] = wire.DecodeTable(f, r.Attributes())
			uses[f] = int(attr.Uint32(attr.Find(r.Attributes(), unix.NFTA_TABLE_USE)))
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, nil, err
		}
	}
	return tables, uses, nil
}

// readTable fills in the chains, the sets with their elements, and the rules.
func (k *Client) readTable(ctx context.Context, t *nft.Table, use int) error {
	counts, err := k.readSets(ctx, t)
	if err != nil {
		return err
	}
	if err := k.readChains(ctx, t, use); err != nil {
		return err
	}
	for _, verdicts := range []bool{true, false} { // the keys of verdict maps lead to lists
		for name, set := range t.Sets {
			if set.Set.Verdicts != verdicts || set.Set.Dynamic || len(set.Set.Key) == 0 {
				continue
			}
			if err := k.fill(ctx, t, set, counts[name]); err != nil {
				return err
			}
		}
	}
	return k.readRules(ctx, t)
}

// fill reads the elements of a set: of a large map of endpoint lists by their keys, of any other set by a
// dump. It also dumps a large map if some of its elements belong to no frontend.
func (k *Client) fill(ctx context.Context, t *nft.Table, set *nft.Elements, count uint32) (err error) {
	if frontends := frontendsOf(t, set.Set); frontends != nil && count >= manyElements {
		set.Map, err = k.readLists(ctx, t.Family, set.Set, frontends.Map)
		if err != nil || uint32(len(set.Map)) == count {
			return err
		}
	}
	return k.retry(ctx, func() error {
		d := wire.NewElementDecoder(t.Family, set.Set)
		if err := k.dumpElements(ctx, t.Family, set.Set.Name, d); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		set.Map = d.Elements()
		return checkCount(set, count, d.Repeated)
	})
}

// readSets reads the definitions of the sets and, if the kernel says it, the number of elements in
// each.
func (k *Client) readSets(ctx context.Context, t *nft.Table) (counts map[string]uint32, err error) {
	counts = make(map[string]uint32)
	about := About(nft.TableName)
	return counts, k.request(ctx, unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, t.Family, about, func(r attr.Reply) {
		name, set := wire.DecodeSet(t.Family, r.Attributes())
		if name != nft.TableName {
			return
		}
		set.Rank = len(t.Sets) // the kernel lists sets in the order of creation
		t.Sets[set.Name] = &nft.Elements{Set: set, Map: make(map[string]nft.Element)}
		if n, ok := wire.SetCount(r.Attributes()); ok {
			counts[set.Name] = n
		}
	})
}

// checkCount returns EINTR if elements are missing or were listed twice. The kernel grows a hash table some time after
// the elements have come. A dump under way may then miss some elements and list others twice. A
// count of zero means that the kernel gave none, as before about Linux 6.16.
func checkCount(s *nft.Elements, count uint32, repeated map[string]bool) error {
	if len(repeated) > 0 || count != 0 && !s.Set.Interval && uint32(len(s.Map)) != count {
		return unix.EINTR
	}
	return nil
}

func (k *Client) readRules(ctx context.Context, t *nft.Table) error {
	return k.request(ctx, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, t.Family, About(nft.TableName), func(r attr.Reply) {
		name, chain, rule := wire.DecodeRule(r.Attributes())
		if c := t.Chains[chain]; c != nil && name == nft.TableName {
			c.Rules = append(c.Rules, rule)
		}
	})
}

// readChains reads the chains without their rules. The kernel also lists chains of other tables. If it
// marks the list as interrupted, readChains counts: together with the sets, all chains are as many as the
// kernel says that the table has. Only a chain of another table that goes during the listing makes the
// kernel leave out one of ours.
func (k *Client) readChains(ctx context.Context, t *nft.Table, use int) error {
	return k.retry(ctx, func() error {
		err := k.Dump(ctx, unix.NFT_MSG_GETCHAIN, t.Family, About(), func(r attr.Reply) {
			if name, chain := wire.DecodeChain(r.Attributes()); name == nft.TableName {
				t.Chains[chain.Name] = chain
			}
		})
		if errors.Is(err, unix.EINTR) && len(t.Chains)+len(t.Sets) == use {
			return nil
		}
		return err
	})
}

// dumpElements lists the elements of a set to d.
func (k *Client) dumpElements(ctx context.Context, f nft.Family, set string, d *wire.ElementDecoder) error {
	return k.Dump(ctx, unix.NFT_MSG_GETSETELEM, f, About(nft.TableName, set),
		func(r attr.Reply) { d.Message(r.Attributes()) })
}

// Dump requests all objects of a kind (NFT_MSG_GET…) and calls each for every message of the
// answer. The message is valid during the call only. Dump returns EINTR if the kernel saw a change
// meanwhile.
func (k *Client) Dump(ctx context.Context, typ uint16, f nft.Family, which func(*attr.Writer),
	each func(attr.Reply)) error {
	interrupted := false
	err := k.request(ctx, typ, unix.NLM_F_DUMP, f, which, func(r attr.Reply) {
		interrupted = interrupted || r.Flags&unix.NLM_F_DUMP_INTR != 0
		each(r)
	})
	if err == nil && interrupted {
		return unix.EINTR
	}
	return err
}

// Get requests one object (NFT_MSG_GET…) and calls each for every message of the answer, which is valid
// during the call only.
func (k *Client) Get(ctx context.Context, typ uint16, f nft.Family, which func(*attr.Writer),
	each func(attr.Reply)) error {
	return k.request(ctx, typ, 0, f, which, each)
}

// Lookup asks the kernel for one element by its key. The kernel finds it as it does for a packet,
// by a structure that a dump does not use. ok is false if there is none. In a set of ranges the key
// may be any key inside a range.
func (k *Client) Lookup(ctx context.Context, f nft.Family, s *nft.Set,
	key string) (element nft.Element, ok bool, err error) {
	d := wire.NewElementDecoder(f, s)
	err = k.lookup(ctx, f, s, d, key)
	switch {
	case errors.Is(err, unix.ENOENT):
		return element, false, nil
	case err != nil:
		return element, false, setError("look up an element of", f, s, err)
	}
	for _, element = range d.Elements() {
		return element, true, nil
	}
	return element, false, nil
}
