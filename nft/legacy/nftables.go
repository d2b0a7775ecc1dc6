package legacy

import (
	"context"
	"encoding/binary"
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

// servedAttempts is how often it is, at most, for a reading that comes again soon, and that may be torn.
const servedAttempts = 4

// errMoving is the error after the last attempt.
var errMoving = errors.New("nf_tables changes faster than it can be read; stop kube-proxy and try again")

// A nfTable is an nf_tables table that kube-proxy writes to.
type nfTable struct {
	scope   scope
	handle  uint64
	family  nft.Family
	rules   ruleset
	handles map[string][]uint64 // of the rules of each chain, in their order
	count   int                 // rules
	// Of ProxyTables:
	setHandles  map[string]uint64 // of anonymous sets, for a Reader
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

// readNFTables lists the tables of both nf_tables backends in the order of an inventory. It returns
// the generation for which the list holds. It needs CAP_NET_ADMIN.
func readNFTables(ctx context.Context, s scope) (tables []*nfTable, generation uint32, err error) {
	k, err := kernel.Open()
	if err != nil {
		return nil, 0, err
	}
	defer k.Close()
	attempts := readAttempts
	if s.served() {
		attempts = servedAttempts
	}
	for range attempts {
		if generation, err = k.Generation(ctx); err != nil {
			return nil, 0, err
		}
		tables, err = s.reader.readTables(generation, func() ([]*nfTable, error) { return readTables(ctx, k, s) })
		after, genErr := k.Generation(ctx)
		if genErr != nil {
			return nil, 0, genErr
		}
		switch {
		case errors.Is(err, unix.EINTR):
		case after == generation:
			if err == nil {
				s.reader.keepTables(generation, tables)
			}
			return tables, generation, err
		case s.served(): // torn, for what has changed meanwhile
			return tables, generation, err
		}
	}
	return nil, 0, errMoving
}

// readTables reads the tables of both families.
func readTables(ctx context.Context, k *kernel.Client, s scope) (tables []*nfTable, err error) {
	for _, f := range nft.Families {
		exist, err := tableHandles(ctx, k, f)
		if err != nil {
			return nil, err
		}
		for _, name := range append(iptablesTables[:len(iptablesTables):len(iptablesTables)], ProxyTable) {
			if exist[name] == 0 || s.served() && name != "nat" && name != ProxyTable {
				continue
			}
			t := &nfTable{
				family: f, rules: ruleset{table: name}, handles: map[string][]uint64{},
				ports: map[proxyPort]tracker.Frontend{}, endpoints: map[string]netip.AddrPort{}, scope: s, handle: exist[name],
			}
			if err := t.read(ctx, k); err != nil {
				return nil, err
			}
			if !t.isKept() {
				tables = append(tables, t)
			}
		}
	}
	return tables, nil
}

// tableHandles lists the tables of a family with their handles.
func tableHandles(ctx context.Context, k *kernel.Client, f nft.Family) (map[string]uint64, error) {
	handles := map[string]uint64{}
	err := k.Dump(ctx, unix.NFT_MSG_GETTABLE, f, kernel.About(), func(r attr.Reply) {
		handles[attr.Name(attr.Find(r.Attributes(), unix.NFTA_TABLE_NAME))] =
			attr.Uint64(attr.Find(r.Attributes(), tableHandle))
	})
	return handles, err
}

// dump calls each with the attributes of every object of a kind. of is the set whose elements are listed, or the chain
// whose rules are, if that is the kind; kernels that do not know the chain list all rules of the table.
func (t *nfTable) dump(ctx context.Context, k *kernel.Client, typ uint16, of string, each func([]byte)) error {
	return k.Dump(ctx, typ, t.family, kernel.About(t.rules.table, of), func(r attr.Reply) { each(r.Attributes()) })
}

// read fills in what the table contains.
func (t *nfTable) read(ctx context.Context, k *kernel.Client) error {
	if t.scope.served() {
		return t.readServed(ctx, k)
	}
	uses, err := t.readChains(ctx, k)
	if err != nil {
		return err
	}
	chains := map[string]*chain{}
	for i := range t.rules.chains {
		chains[t.rules.chains[i].name] = &t.rules.chains[i]
	}
	known := map[string]uint32{} // how many rules use each chain
	err = t.dump(ctx, k, unix.NFT_MSG_GETRULE, "", func(b []byte) {
		r := decodeRule(b, t.family)
		place := chains[r.chain]
		if r.table != t.rules.table || place == nil {
			return
		}
		place.rules = append(place.rules, r.rule)
		t.handles[r.chain] = append(t.handles[r.chain], r.handle)
		t.count++
		if r.rule.endpoint.IsValid() && t.backend() == ProxyTables {
			t.endpoints[r.chain] = r.rule.endpoint
		}
		known[r.chain]++
		known[r.rule.target]++
	})
	if err != nil {
		return err
	}
	if t.backend() == ProxyTables {
		if err = t.readSets(ctx, k); err == nil && t.scope.endpoints {
			err = t.fillEndpoints(ctx, k)
		}
		return err
	}
	// A use that is no rule is an element of a verdict map, which iptables never writes.
	for i := range t.rules.chains {
		c := &t.rules.chains[i]
		c.elsewhere = !c.base && uses[i] > known[c.name]
	}
	return nil
}

// readChains lists the chains. It returns how often each is used: its rules, and what leads to it.
func (t *nfTable) readChains(ctx context.Context, k *kernel.Client) (uses []uint32, err error) {
	err = t.dump(ctx, k, unix.NFT_MSG_GETCHAIN, "", func(b []byte) {
		if attr.Name(attr.Find(b, unix.NFTA_CHAIN_TABLE)) == t.rules.table {
			name, base := attr.Name(attr.Find(b, unix.NFTA_CHAIN_NAME)), attr.Find(b, unix.NFTA_CHAIN_HOOK) != nil
			t.rules.chains = append(t.rules.chains, chain{name: name, base: base})
			uses = append(uses, attr.Uint32(attr.Find(b, unix.NFTA_CHAIN_USE)))
		}
	})
	return uses, err
}

// readSets lists the named sets and maps with the number of their elements, and the frontends and the
// entries of session affinity among these.
func (t *nfTable) readSets(ctx context.Context, k *kernel.Client) error {
	err := t.dump(ctx, k, unix.NFT_MSG_GETSET, "", func(b []byte) {
		if name := attr.Name(attr.Find(b, unix.NFTA_SET_NAME)); !strings.HasPrefix(name, "__") { // anonymous: part of a rule
			t.sets = append(t.sets, Set{Name: name})
		}
	})
	for _, affinity := range []bool{false, true} { // which frontends there are comes first
		for i := range t.sets {
			set := &t.sets[i]
			endpoint, isAffinity := strings.CutPrefix(set.Name, proxyAffinity)
			if isAffinity != affinity {
				continue
			}
			at, to := t.ports[proxyPortOf(set.Name)], t.endpoints[proxyEndpoint+endpoint]
			err = errors.Join(err, t.elements(ctx, k, set.Name, func(element []byte) {
				set.Elements++
				t.addElement(set.Name, element)
				if e := (AffinityEntry{at, keyAddress(element), to}); affinity && at.Port != 0 && e.valid() &&
					len(t.entries) < maxEntries {
					t.entries = append(t.entries, e)
				}
			}))
		}
	}
	return err
}

// addElement takes in an element of a set that says which frontends there are, and where.
func (t *nfTable) addElement(set string, element []byte) {
	if at, ok := elementFrontend(t.family, set, element); ok {
		t.frontends = append(t.frontends, at)
		t.recordPort(at)
	}
	if set == proxyNodeAddresses {
		t.nodePortsAt = append(t.nodePortsAt, keyAddress(element))
	}
}

// recordPort records the frontend of an element that leads to a chain of a Service port: of several the
// cluster IP, which no other Service can have.
func (t *nfTable) recordPort(at Frontend) {
	port := proxyPortOf(at.leads)
	if _, known := t.ports[port]; !known || roleOf(at.leads) == clusterRole || roleOf(at.leads) == localRole {
		t.ports[port] = at.Frontend
	}
}

// A wireRule is a rule as nf_tables lists it.
type wireRule struct {
	table, chain string
	handle       uint64
	rule         rule
}

// decodeRule reads a rule of family f from the attributes of NFT_MSG_NEWRULE.
func decodeRule(b []byte, f nft.Family) wireRule {
	r := ruleReader{rule: rule{plain: true}, family: f}
	for expressions := attr.NewReader(attr.Find(b, unix.NFTA_RULE_EXPRESSIONS)); expressions.Next(); {
		r.add(expressions.Value)
	}
	return wireRule{attr.Name(attr.Find(b, unix.NFTA_RULE_TABLE)), attr.Name(attr.Find(b, unix.NFTA_RULE_CHAIN)),
		attr.Uint64(attr.Find(b, unix.NFTA_RULE_HANDLE)), r.rule}
}

// A ruleReader reads a rule expression by expression: a payload or a meta expression loads what the next
// comparison tests, an immediate one what a translation uses.
type ruleReader struct {
	rule
	family nft.Family
	loaded field
	// What the last immediate expressions have loaded.
	translatedTo   netip.Addr
	translatedPort uint16
}

// A field is what the last expression has loaded, as far as it matters.
type field uint8

const (
	otherField field = iota
	addressField
	protocolField
	portField
)

// add takes in one expression. One that it does not know is a condition: the rule is no plain jump.
func (r *ruleReader) add(expression []byte) {
	name, data := attr.Name(attr.Find(expression, unix.NFTA_EXPR_NAME)), attr.Find(expression, unix.NFTA_EXPR_DATA)
	value := func(typ uint16) uint32 { return attr.Uint32(attr.Find(data, typ)) }
	loaded, plain := r.loaded, r.plain
	r.loaded, r.plain = otherField, false
	switch name {
	case "counter", "bitwise": // only a comparison tests what they work on: with bitwise, a range of addresses
		r.plain = plain
	case "cmp":
		if r.plain = plain; value(unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ {
			r.compare(loaded, attr.Find(attr.Find(data, unix.NFTA_CMP_DATA), unix.NFTA_DATA_VALUE))
		}
	case "immediate": // a verdict, which may name a chain, or a value
		r.plain = plain
		content := attr.Find(data, unix.NFTA_IMMEDIATE_DATA)
		if chain := attr.Find(attr.Find(content, unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN); chain != nil {
			r.target = attr.Name(chain)
		}
		switch v := attr.Find(content, unix.NFTA_DATA_VALUE); len(v) {
		case 2:
			r.translatedPort = binary.BigEndian.Uint16(v)
		case 4, 16:
			r.translatedTo, _ = netip.AddrFromSlice(v)
		}
	case "match":
		r.plain = plain
		r.addMatch(attr.Name(attr.Find(data, unix.NFTA_MATCH_NAME)), attr.Find(data, unix.NFTA_MATCH_INFO))
	case "target":
		r.addTarget(r.family, attr.Name(attr.Find(data, unix.NFTA_TARGET_NAME)), uint8(value(unix.NFTA_TARGET_REV)),
			attr.Find(data, unix.NFTA_TARGET_INFO))
	case "lookup": // in a set, which is a condition; or in a map, whose value is a verdict or an address
		if attr.Find(data, unix.NFTA_LOOKUP_DREG) != nil {
			r.chooses = attr.Name(attr.Find(data, unix.NFTA_LOOKUP_SET))
		}
	case "ct": // with the key state: a rule's test of it without an extension
		key := attr.Find(data, unix.NFTA_CT_KEY)
		r.plain = plain && len(key) == 4 && attr.Uint32(key) == unix.NFT_CT_STATE
	case "meta":
		if value(unix.NFTA_META_KEY) == unix.NFT_META_L4PROTO {
			r.loaded = protocolField
		}
	case "payload":
		r.loaded = payloadField(value(unix.NFTA_PAYLOAD_BASE), value(unix.NFTA_PAYLOAD_OFFSET), value(unix.NFTA_PAYLOAD_LEN))
	case "nat":
		if value(unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT && r.translatedTo.IsValid() {
			r.endpoint = netip.AddrPortFrom(r.translatedTo, r.translatedPort)
		}
	}
}

// compare records the value that a loaded field must have.
func (r *ruleReader) compare(loaded field, operand []byte) {
	switch {
	case loaded == addressField:
		r.to, _ = netip.AddrFromSlice(operand)
	case loaded == protocolField && len(operand) == 1:
		r.protocol = operand[0]
	case loaded == portField && len(operand) == 2:
		r.port = binary.BigEndian.Uint16(operand)
	}
}

// payloadField says which field of a packet lies at an offset: of RFC 791, RFC 8200 and of every
// protocol that has ports.
func payloadField(base, offset, length uint32) field {
	type place struct{ base, offset, length uint32 }
	switch (place{base, offset, length}) {
	case place{unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4}, place{unix.NFT_PAYLOAD_NETWORK_HEADER, 24, 16}:
		return addressField
	case place{unix.NFT_PAYLOAD_NETWORK_HEADER, 9, 1}, place{unix.NFT_PAYLOAD_NETWORK_HEADER, 6, 1}:
		return protocolField
	case place{unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2}:
		return portField
	}
	return otherField
}
