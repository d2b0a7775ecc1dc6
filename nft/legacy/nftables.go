package legacy

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/tracker"
)

// readAttempts is how often nf_tables is listed again because another program committed meanwhile; a
// listing takes some ten milliseconds.
const readAttempts = 50

// errMoving is the error after the last attempt.
var errMoving = errors.New("nf_tables changes faster than it can be read; stop kube-proxy and try again")

// A nfTable is an nf_tables table that kube-proxy writes to.
type nfTable struct {
	family  nft.Family
	rules   ruleset
	handles map[string][]uint64 // of the rules of each chain, in their order
	count   int                 // rules
	// Of ProxyTables:
	sets        []Set
	frontends   []Frontend
	nodePortsAt []netip.Addr
	entries     []AffinityEntry
	ports       map[proxyPort]tracker.Frontend // one frontend of each Service port, its cluster IP if it has one
	endpoints   map[string]netip.AddrPort      // of the chains that have one
}

// backend returns which of the two kinds the table is.
func (t *nfTable) backend() Backend {
	if t.rules.table == ProxyTable {
		return ProxyTables
	}
	return Compat
}

// request begins a message about the table; attribute 1 of every kind is the table's name.
func (t *nfTable) request(command uint16) *request {
	r := newRequest(nfTables|command, t.family)
	r.Name(unix.NFTA_TABLE_NAME, t.rules.table)
	return r
}

// readNFTables lists the tables of both nf_tables backends in the order of an inventory. It returns
// the generation for which the list holds. It needs CAP_NET_ADMIN.
func readNFTables(ctx context.Context) (tables []*nfTable, generation uint32, err error) {
	k, err := kernel.Open()
	if err != nil {
		return nil, 0, err
	}
	defer k.Close()
	for range readAttempts {
		if generation, err = k.Generation(ctx); err != nil {
			return nil, 0, err
		}
		tables, err = readTables(ctx, k)
		after, genErr := k.Generation(ctx)
		if genErr != nil {
			return nil, 0, genErr
		}
		if after == generation && !errors.Is(err, unix.EINTR) {
			return tables, generation, err
		}
	}
	return nil, 0, errMoving
}

// readTables reads the tables of both families.
func readTables(ctx context.Context, k *kernel.Client) (tables []*nfTable, err error) {
	for _, f := range nft.Families {
		exist := map[string]bool{}
		err := k.Dump(ctx, unix.NFT_MSG_GETTABLE, f, func(*attr.Writer) {}, func(r attr.Reply) {
			exist[attr.Name(attr.Find(r.Attributes(), unix.NFTA_TABLE_NAME))] = true
		})
		if err != nil {
			return nil, err
		}
		for _, name := range append(iptablesTables[:len(iptablesTables):len(iptablesTables)], ProxyTable) {
			if !exist[name] {
				continue
			}
			t := &nfTable{
				family: f, rules: ruleset{table: name}, handles: map[string][]uint64{},
				ports: map[proxyPort]tracker.Frontend{}, endpoints: map[string]netip.AddrPort{},
			}
			if err := t.read(ctx, k); err != nil {
				return nil, err
			}
			tables = append(tables, t)
		}
	}
	return tables, nil
}

// dump calls each with the attributes of every object of a kind. set is the set whose elements are
// listed, if that is the kind.
func (t *nfTable) dump(ctx context.Context, k *kernel.Client, typ uint16, set string,
	each func(*attr.Reader)) (err error) {
	which := func(w *attr.Writer) {
		w.Name(unix.NFTA_TABLE_NAME, t.rules.table) // attribute 1 of each kind
		if set != "" {
			w.Name(unix.NFTA_SET_ELEM_LIST_SET, set)
		}
	}
	dumpErr := k.Dump(ctx, typ, t.family, which, func(r attr.Reply) {
		list := attr.NewReader(r.Attributes())
		each(&list)
		err = cmp.Or(err, list.Err())
	})
	return cmp.Or(dumpErr, err)
}

// read fills in what the table contains.
func (t *nfTable) read(ctx context.Context, k *kernel.Client) error {
	var uses []uint32 // of each chain: its rules, and what leads to it
	err := t.dump(ctx, k, unix.NFT_MSG_GETCHAIN, "", func(list *attr.Reader) {
		table, found, use := decodeChain(list)
		if table == t.rules.table {
			t.rules.chains = append(t.rules.chains, found)
			uses = append(uses, use)
		}
	})
	if err != nil {
		return err
	}
	chains := map[string]*chain{}
	for i := range t.rules.chains {
		chains[t.rules.chains[i].name] = &t.rules.chains[i]
	}
	known := map[string]uint32{} // how many rules use each chain
	err = t.dump(ctx, k, unix.NFT_MSG_GETRULE, "", func(list *attr.Reader) {
		r := decodeRule(list, t.family)
		place := chains[r.chain]
		if r.table != t.rules.table || place == nil {
			return
		}
		place.rules = append(place.rules, r.rule)
		t.handles[r.chain] = append(t.handles[r.chain], r.handle)
		t.count++
		if r.rule.recent != nil && t.backend() == ProxyTables {
			t.endpoints[r.chain] = r.rule.recent.endpoint
		}
		known[r.chain]++
		known[r.rule.target]++
	})
	if err != nil {
		return err
	}
	if t.backend() == ProxyTables {
		return t.readSets(ctx, k)
	}
	// A use that is no rule is an element of a verdict map, which iptables never writes.
	for i := range t.rules.chains {
		c := &t.rules.chains[i]
		c.elsewhere = !c.base && uses[i] > known[c.name]
	}
	return nil
}

// readSets lists the named sets and maps with the number of their elements, and the frontends and the
// entries of session affinity among these.
func (t *nfTable) readSets(ctx context.Context, k *kernel.Client) error {
	err := t.dump(ctx, k, unix.NFT_MSG_GETSET, "", func(list *attr.Reader) {
		for list.Next() {
			// anonymous: part of a rule
			if name := list.Name(); list.Type == unix.NFTA_SET_NAME && !strings.HasPrefix(name, "__") {
				t.sets = append(t.sets, Set{Name: name})
			}
		}
	})
	dump := func(set *Set) {
		endpoint, isAffinity := t.endpoints[proxyEndpoint+strings.TrimPrefix(set.Name, proxyAffinity)],
			strings.HasPrefix(set.Name, proxyAffinity)
		at := t.ports[proxyPortOf(set.Name)]
		err = errors.Join(err, t.dump(ctx, k, unix.NFT_MSG_GETSETELEM, set.Name, func(list *attr.Reader) {
			for list.Next() {
				if list.Type != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
					continue
				}
				for elements := list.Nested(); elements.Next(); {
					set.Elements++
					if at, ok := elementFrontend(t.family, set.Name, elements.Value); ok {
						t.frontends = append(t.frontends, at)
						t.recordPort(at.Frontend, elements.Value)
					}
					if e := (AffinityEntry{at, proxyClient(elements.Value), endpoint}); isAffinity && at.Port != 0 && e.valid() &&
						len(t.entries) < maxEntries {
						t.entries = append(t.entries, e)
					}
					if set.Name == proxyNodeAddresses {
						addr, _ := netip.AddrFromSlice(attr.Find(attr.Find(elements.Value, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE))
						t.nodePortsAt = append(t.nodePortsAt, addr)
					}
				}
			}
		}))
	}
	for _, affinity := range []bool{false, true} { // which frontends there are comes first
		for i := range t.sets {
			if strings.HasPrefix(t.sets[i].Name, proxyAffinity) == affinity {
				dump(&t.sets[i])
			}
		}
	}
	return err
}

// recordPort records the frontend of an element that leads to a chain of a Service port: of several the
// cluster IP, which no other Service can have.
func (t *nfTable) recordPort(at tracker.Frontend, element []byte) {
	verdict := attr.Find(attr.Find(element, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VERDICT)
	chain := attr.Name(attr.Find(verdict, unix.NFTA_VERDICT_CHAIN))
	port := proxyPortOf(chain)
	if _, known := t.ports[port]; !known || strings.HasPrefix(chain, "service-") || strings.HasPrefix(chain, "local-") {
		t.ports[port] = at
	}
}

// decodeChain reads a chain from the attributes of NFT_MSG_NEWCHAIN, and how often it is used.
func decodeChain(list *attr.Reader) (table string, c chain, use uint32) {
	for list.Next() {
		switch list.Type {
		case unix.NFTA_CHAIN_TABLE:
			table = list.Name()
		case unix.NFTA_CHAIN_NAME:
			c.name = list.Name()
		case unix.NFTA_CHAIN_HOOK:
			c.base = true
		case unix.NFTA_CHAIN_USE:
			use = list.Uint32()
		}
	}
	return table, c, use
}

// A wireRule is a rule as nf_tables lists it.
type wireRule struct {
	table, chain string
	handle       uint64
	rule         rule
}

// decodeRule reads a rule of family f from the attributes of NFT_MSG_NEWRULE.
func decodeRule(list *attr.Reader, f nft.Family) (r wireRule) {
	r.rule.plain = true
	var to expressionReader
	for list.Next() {
		switch list.Type {
		case unix.NFTA_RULE_TABLE:
			r.table = list.Name()
		case unix.NFTA_RULE_CHAIN:
			r.chain = list.Name()
		case unix.NFTA_RULE_HANDLE:
			r.handle = list.Uint64()
		case unix.NFTA_RULE_EXPRESSIONS:
			for expressions := list.Nested(); expressions.Next(); {
				r.rule.addExpression(expressions.Value, f)
				to.add(attr.Name(attr.Find(expressions.Value, unix.NFTA_EXPR_NAME)),
					attr.Find(expressions.Value, unix.NFTA_EXPR_DATA))
			}
		}
	}
	r.rule.destination = to.destination
	if to.endpoint.IsValid() {
		if r.rule.recent == nil {
			r.rule.recent = new(recent)
		}
		r.rule.recent.endpoint = to.endpoint
	}
	return r
}

// addExpression notes one expression of the rule. An expression that it does not know is a
// condition: the rule is no plain jump.
func (r *rule) addExpression(expression []byte, f nft.Family) {
	data := attr.Find(expression, unix.NFTA_EXPR_DATA)
	switch attr.Name(attr.Find(expression, unix.NFTA_EXPR_NAME)) {
	case "counter", "bitwise", "cmp": // the last two only test what another expression has loaded
	case "immediate": // a verdict, which may name a chain, or a value
		verdict := attr.Find(attr.Find(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
		if chain := attr.Find(verdict, unix.NFTA_VERDICT_CHAIN); chain != nil {
			r.target = attr.Name(chain)
		}
	case "match": // an extension of x_tables
		switch attr.Name(attr.Find(data, unix.NFTA_MATCH_NAME)) {
		case "comment":
			r.comment = attr.Name(attr.Find(data, unix.NFTA_MATCH_INFO))
		case "conntrack", "state":
		case "recent":
			r.recent, r.plain = recentOf(attr.Find(data, unix.NFTA_MATCH_INFO)), false
		default:
			r.plain = false
		}
	case "target": // an extension of x_tables
		r.plain = false
		if revision := attr.Find(data, unix.NFTA_TARGET_REV); r.recent != nil &&
			attr.Name(attr.Find(data, unix.NFTA_TARGET_NAME)) == "DNAT" {
			r.recent.endpoint = translation(f, uint8(attr.Uint32(revision)), attr.Find(data, unix.NFTA_TARGET_INFO))
		}
	case "ct": // with the key state: a rule's test of it without an extension
		key := attr.Find(data, unix.NFTA_CT_KEY)
		r.plain = r.plain && len(key) == 4 && attr.Uint32(key) == unix.NFT_CT_STATE
	default:
		r.plain = false
	}
}
