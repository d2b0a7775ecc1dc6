package legacy

import (
	"context"
	"errors"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// readAttempts is how often the listing of nf_tables is begun again because somebody
// committed meanwhile; it takes some ten milliseconds.
const readAttempts = 50

// errMoving is the remedy after the last attempt.
var errMoving = errors.New("nf_tables changes faster than it can be read; stop kube-proxy and try again")

// A nfTable is an nf_tables table that kube-proxy writes to.
type nfTable struct {
	family  nft.Family
	name    string
	rules   ruleset             // of Compat
	handles map[string][]uint64 // of the rules of each chain, in their order
	chains  int                 // of ProxyTables, as are the rest
	count   int                 // rules
	sets    []Set
}

// backend tells which of the two kinds the table is.
func (t *nfTable) backend() Backend {
	if t.name == ProxyTable {
		return ProxyTables
	}
	return Compat
}

// readNFTables lists the tables of both nf_tables backends in the order of an inventory,
// and the generation at which the list is true. It needs CAP_NET_ADMIN.
func readNFTables(ctx context.Context, c *netlink.Conn) (tables []*nfTable, generation uint32, err error) {
	for range readAttempts {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		if generation, err = readGeneration(c); err != nil {
			return nil, 0, err
		}
		tables, err = readFamilies(c)
		after, genErr := readGeneration(c)
		if genErr != nil {
			return nil, 0, genErr
		}
		if after == generation && !errors.Is(err, unix.EINTR) {
			return tables, generation, err
		}
	}
	return nil, 0, errMoving
}

// readGeneration returns the number of the last commit in this network namespace.
func readGeneration(c *netlink.Conn) (generation uint32, err error) {
	replies, err := c.Execute(newEncoder().message(nfTables(unix.NFT_MSG_GETGEN), 0, 0))
	if err != nil || len(replies) == 0 {
		return 0, err
	}
	data, err := payload(replies[0])
	if err != nil {
		return 0, err
	}
	err = attributes(data, func(d *netlink.AttributeDecoder) error {
		if d.Type() == unix.NFTA_GEN_ID {
			generation = d.Uint32()
		}
		return nil
	})
	return generation, err
}

// readFamilies reads the tables of both families.
func readFamilies(c *netlink.Conn) (tables []*nfTable, err error) {
	for _, f := range nft.Families {
		exist, err := readNames(c, f)
		if err != nil {
			return nil, err
		}
		for _, name := range append(iptablesTables[:len(iptablesTables):len(iptablesTables)], ProxyTable) {
			if !exist[name] {
				continue
			}
			t := &nfTable{family: f, name: name, handles: map[string][]uint64{}}
			if err := t.read(c); err != nil {
				return nil, err
			}
			tables = append(tables, t)
		}
	}
	return tables, nil
}

// readNames returns the names of the tables of a family.
func readNames(c *netlink.Conn, f nft.Family) (map[string]bool, error) {
	names := map[string]bool{}
	request := newEncoder().message(nfTables(unix.NFT_MSG_GETTABLE), 0, f)
	return names, dump(c, request, func(data []byte) error {
		name := attribute(data, unix.NFTA_TABLE_NAME)
		names[text(name, len(name))] = true
		return nil
	})
}

// read fills in what the table contains.
func (t *nfTable) read(c *netlink.Conn) error {
	use, err := t.readChains(c)
	if err != nil {
		return err
	}
	if err := t.readRules(c); err != nil {
		return err
	}
	if t.backend() == ProxyTables {
		return t.readSets(c)
	}
	t.countReferences(use)
	return nil
}

// readChains lists the chains and returns how often each is used.
func (t *nfTable) readChains(c *netlink.Conn) (use map[string]uint32, err error) {
	use = map[string]uint32{}
	t.rules = ruleset{table: t.name}
	request := newEncoder().message(nfTables(unix.NFT_MSG_GETCHAIN), 0, t.family)
	return use, dump(c, request, func(data []byte) error {
		found, err := decodeChain(data)
		if err != nil || found.table != t.name {
			return err
		}
		use[found.name] = found.use
		t.rules.chains = append(t.rules.chains, chain{name: found.name, base: found.base, drops: found.drops})
		t.chains++
		return nil
	})
}

// readRules lists the rules of all chains.
func (t *nfTable) readRules(c *netlink.Conn) error {
	places := map[string]*chain{}
	for i := range t.rules.chains {
		places[t.rules.chains[i].name] = &t.rules.chains[i]
	}
	e := newEncoder()
	e.String(unix.NFTA_RULE_TABLE, t.name)
	return dump(c, e.message(nfTables(unix.NFT_MSG_GETRULE), 0, t.family), func(data []byte) error {
		r, err := decodeRule(data)
		place := places[r.chain]
		if err != nil || r.table != t.name || place == nil {
			return err
		}
		place.rules = append(place.rules, r.rule)
		t.handles[r.chain] = append(t.handles[r.chain], r.handle)
		t.count++
		return nil
	})
}

// countReferences marks the chains that are used by more than their own rules and the
// jumps of others: elements of verdict maps, which iptables never writes.
func (t *nfTable) countReferences(use map[string]uint32) {
	known := map[string]int{}
	for _, c := range t.rules.chains {
		known[c.name] += len(c.rules)
		for _, r := range c.rules {
			known[r.target]++
		}
	}
	for i := range t.rules.chains {
		c := &t.rules.chains[i]
		c.elsewhere = !c.base && int(use[c.name]) > known[c.name]
	}
}

// readSets lists the named sets and maps with the number of their elements.
func (t *nfTable) readSets(c *netlink.Conn) error {
	e := newEncoder()
	e.String(unix.NFTA_SET_TABLE, t.name)
	request := e.message(nfTables(unix.NFT_MSG_GETSET), 0, t.family)
	err := dump(c, request, func(data []byte) error {
		name := attribute(data, unix.NFTA_SET_NAME)
		if set := text(name, len(name)); !strings.HasPrefix(set, "__") { // anonymous: part of a rule
			t.sets = append(t.sets, Set{Name: set})
		}
		return nil
	})
	for i := range t.sets {
		err = errors.Join(err, t.readElements(c, &t.sets[i]))
	}
	return err
}

// readElements counts the elements of a set.
func (t *nfTable) readElements(c *netlink.Conn, s *Set) error {
	e := newEncoder()
	e.String(unix.NFTA_SET_ELEM_LIST_TABLE, t.name)
	e.String(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	request := e.message(nfTables(unix.NFT_MSG_GETSETELEM), 0, t.family)
	return dump(c, request, func(data []byte) error {
		return attributes(attribute(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(*netlink.AttributeDecoder) error {
			s.Elements++
			return nil
		})
	})
}
