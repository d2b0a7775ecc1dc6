package legacy

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// Lists are the endpoints that serve a frontend. They are sorted, and frontends of one Service port may share
// their memory.
type Lists struct {
	// Cluster serves clients that the traffic policy Local does not concern, Local those from outside; with the
	// internal policy Local, Local serves all clients of a cluster IP.
	Cluster, Local []netip.AddrPort
	// HasLocal says that the policy is Local, also if Local is empty.
	HasLocal bool
	// OneList says that the mode has one list for all clients, in Cluster: IPVS, which with the policy Local has the
	// local endpoints or, without any, all.
	OneList bool
}

// sortedEndpoints sorts a list in place and leaves out what is in it twice.
func sortedEndpoints(list []netip.AddrPort) []netip.AddrPort {
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

// A role is what a chain of a Service port is for, in the iptables and the nftables mode.
type role uint8

const (
	noRole       role = iota
	clusterRole       // chooses among all endpoints
	localRole         // chooses among those on this node
	externalRole      // sends clients to one of these two, by the policy
	endpointRole
)

// roles are the beginnings of the names of such chains. KUBE-FW- leads to KUBE-EXT-.
var roles = []struct {
	prefix string
	role   role
}{
	{"KUBE-SVC-", clusterRole}, {"service-", clusterRole},
	{"KUBE-SVL-", localRole}, {"local-", localRole},
	{"KUBE-EXT-", externalRole}, {"KUBE-XLB-", externalRole}, {"KUBE-FW-", externalRole}, {"external-", externalRole},
	{"KUBE-SEP-", endpointRole}, {proxyEndpoint, endpointRole},
}

func roleOf(chain string) role {
	for _, r := range roles {
		if strings.HasPrefix(chain, r.prefix) {
			return r.role
		}
	}
	return noRole
}

// A chainReader finds the endpoints to which chains lead.
type chainReader struct {
	rules  func(chain string) []rule
	choice func(name string) choice    // what a map has from which a rule chooses
	known  map[string][]netip.AddrPort // the lists of chains
}

// A choice is what a map of the nftables mode has: endpoints, or chains of endpoints.
type choice struct {
	endpoints []netip.AddrPort
	chains    []string
}

// newChainReader returns the reader of chains that have been read.
func newChainReader(chains []chain) *chainReader {
	byName := make(map[string][]rule, len(chains))
	for i := range chains {
		byName[chains[i].name] = chains[i].rules
	}
	return &chainReader{rules: func(chain string) []rule { return byName[chain] },
		known: make(map[string][]netip.AddrPort)}
}

// fill fills in the lists of frontends.
func (r *chainReader) fill(frontends []Frontend) {
	for i := range frontends {
		frontends[i].Lists = r.lists(frontends[i].leads)
	}
}

// lists returns the lists of a frontend that leads to a chain.
func (r *chainReader) lists(name string) (l Lists) {
	switch roleOf(name) {
	case clusterRole:
		l.Cluster = r.endpoints(name)
	case localRole:
		l.Local, l.HasLocal = r.endpoints(name), true
	case externalRole:
		rules := r.rules(name)
		l.HasLocal = len(rules) > 0
		for _, rule := range rules {
			switch roleOf(rule.target) {
			case clusterRole:
				l.Cluster = r.endpoints(rule.target)
				l.HasLocal = l.HasLocal && !rule.plain // with the policy Local only pods and this node get there
			case localRole:
				l.Local = r.endpoints(rule.target)
			case externalRole: // from the chain that checks source ranges
				if strings.HasPrefix(name, "KUBE-FW-") && !strings.HasPrefix(rule.target, "KUBE-FW-") {
					return r.lists(rule.target)
				}
			case endpointRole: // before Kubernetes 1.24
				l.Local = sortedEndpoints(append(l.Local, r.endpoints(rule.target)...))
			}
		}
	}
	return l
}

// endpoints returns the endpoints among which a chain chooses.
func (r *chainReader) endpoints(name string) []netip.AddrPort {
	if list, known := r.known[name]; known {
		return list
	}
	r.known[name] = nil // a loop of chains ends here
	var list []netip.AddrPort
	next := func(chain string) {
		if roleOf(chain) == endpointRole {
			list = append(list, r.endpoints(chain)...)
		}
	}
	for _, rule := range r.rules(name) {
		if rule.endpoint.IsValid() {
			list = append(list, rule.endpoint)
		}
		if next(rule.target); rule.chooses != "" {
			chosen := r.choice(rule.chooses)
			list = append(list, chosen.endpoints...)
			for _, chain := range chosen.chains {
				next(chain)
			}
		}
	}
	list = slices.Clip(sortedEndpoints(list))
	r.known[name] = list
	return list
}

// fillEndpoints fills in the lists of the table's frontends. Chains that have not been read are read one by one: a
// listing of all rules goes on where it has ended by counting, piece by piece, and takes seconds for 5,000 Services.
func (t *nfTable) fillEndpoints(ctx context.Context, k *kernel.Client) (err error) {
	r := newChainReader(t.rules.chains)
	if t.scope.served() {
		r.rules = func(chain string) (rules []rule) {
			if err == nil {
				rules, err = t.rulesOf(ctx, k, chain)
				err = present(err) // it may have gone meanwhile
			}
			return rules
		}
	}
	r.choice = func(name string) (c choice) {
		if known, ok := t.scope.reader.known(t, name); ok {
			return known
		}
		if err == nil {
			err = t.elements(ctx, k, name, func(element []byte) {
				c.add(t.family, attr.Find(element, unix.NFTA_SET_ELEM_DATA))
			})
			if err == nil {
				t.scope.reader.keep(t, name, c)
			}
			if t.scope.served() {
				err = present(err)
			}
		}
		return c
	}
	r.fill(t.frontends)
	return err
}

// readServed reads the frontends of the table and nothing else.
func (t *nfTable) readServed(ctx context.Context, k *kernel.Client) (err error) {
	if t.backend() == ProxyTables {
		t.setHandles, err = t.readSetHandles(ctx, k)
		err = present(err)
		for _, set := range []string{proxyServices, proxyNodePorts, proxyNodeAddresses} {
			err = cmp.Or(err, present(t.elements(ctx, k, set, func(element []byte) { t.addElement(set, element) })))
		}
		return cmp.Or(err, t.fillEndpoints(ctx, k))
	}
	for _, name := range []string{serviceChain, nodePortChain} {
		rules, rulesErr := t.rulesOf(ctx, k, name)
		t.rules.chains, err = append(t.rules.chains, chain{name: name, rules: rules}), cmp.Or(err, present(rulesErr))
	}
	t.frontends = t.rules.frontends(t.family)
	return cmp.Or(err, t.fillEndpoints(ctx, k))
}

// present passes over the error of a table, a chain or a set that does not exist.
func present(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// rulesOf reads the rules of a chain.
func (t *nfTable) rulesOf(ctx context.Context, k *kernel.Client, name string) (rules []rule, err error) {
	err = t.dump(ctx, k, unix.NFT_MSG_GETRULE, name, func(b []byte) {
		if rule := decodeRule(b, t.family); rule.chain == name && rule.table == t.rules.table {
			rules = append(rules, rule.rule)
		}
	})
	return rules, err
}

// elements calls each with every element of a set.
func (t *nfTable) elements(ctx context.Context, k *kernel.Client, set string, each func(element []byte)) error {
	return t.dump(ctx, k, unix.NFT_MSG_GETSETELEM, set, func(b []byte) {
		for elements := attr.NewReader(attr.Find(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)); elements.Next(); {
			each(elements.Value)
		}
	})
}

// add takes in the data of an element: a verdict, or address and port, each in four bytes or more.
func (c *choice) add(f nft.Family, data []byte) {
	if verdict := attr.Find(data, unix.NFTA_DATA_VERDICT); verdict != nil {
		c.chains = append(c.chains, attr.Name(attr.Find(verdict, unix.NFTA_VERDICT_CHAIN)))
		return
	}
	value, n := attr.Find(data, unix.NFTA_DATA_VALUE), nft.AddrLen(f)
	if len(value) < n+2 {
		return
	}
	addr, _ := netip.AddrFromSlice(value[:n])
	c.endpoints = append(c.endpoints, netip.AddrPortFrom(addr, binary.BigEndian.Uint16(value[n:])))
}

// A Reader reads the frontends that kube-proxy's rules serve, with their endpoint lists, again and again. Its zero
// value is ready. It is for one goroutine.
type Reader struct {
	// choices are the maps from which rules choose, of the last reading. They are anonymous: nothing changes their
	// content, and their handles are not used again. The kernel finds a set by its name in a list: without what is known,
	// 5,000 Services would take seconds each time.
	choices, last map[choiceID]choice

	tables     []*nfTable // of nf_tables, and the generation for which they hold
	generation uint32
	valid      bool
	same       bool // the last reading found that generation
}

// A choiceID is the identity of an anonymous map.
type choiceID struct {
	family     nft.Family
	table, set uint64 // handles
}

// Read reads the frontends, and nothing else. It changes nothing, makes the kernel load nothing, and takes no lock for
// which a commit to nf_tables waits. If a program commits to nf_tables meanwhile, what was changed may be torn: a
// frontend may be missing, or have a part of its endpoints. The next reading sees it as it is.
func (r *Reader) Read(ctx context.Context) (inv Inventory, err error) {
	inv.Endpoints, r.same = true, false
	inv.Parts, err = readParts(ctx, scope{endpoints: true, reader: r})
	r.last = nil
	inv.Same = err == nil && r.same && !slices.ContainsFunc(inv.Parts, func(p Part) bool {
		return (p.Backend == Xtables || p.Backend == IPVS) && len(p.Frontends) > 0
	})
	return inv, err
}

// readTables reads the tables, unless they have not changed since generation.
func (r *Reader) readTables(generation uint32, read func() ([]*nfTable, error)) (tables []*nfTable, err error) {
	if r == nil {
		return read()
	}
	if r.same = r.valid && r.generation == generation; r.same {
		return r.tables, nil
	}
	r.valid = false
	if r.last == nil { // not at a second attempt of the same reading
		r.last, r.choices = r.choices, make(map[choiceID]choice, len(r.choices))
	}
	return read()
}

// keepTables keeps tables for the next reading.
func (r *Reader) keepTables(generation uint32, tables []*nfTable) {
	if r != nil && !r.same {
		r.tables, r.generation, r.valid = tables, generation, true
	}
}

// known returns what was read of a map.
func (r *Reader) known(t *nfTable, name string) (c choice, ok bool) {
	handle := t.setHandles[name]
	if r == nil || handle == 0 {
		return c, false
	}
	id := choiceID{t.family, t.handle, handle}
	if c, ok = r.choices[id]; !ok {
		if c, ok = r.last[id]; ok {
			r.choices[id] = c
		}
	}
	return c, ok
}

// keep keeps what was read of a map.
func (r *Reader) keep(t *nfTable, name string, c choice) {
	if handle := t.setHandles[name]; r != nil && handle != 0 {
		r.choices[choiceID{t.family, t.handle, handle}] = c
	}
}

// readSetHandles reads the handles of the table's anonymous sets.
func (t *nfTable) readSetHandles(ctx context.Context, k *kernel.Client) (handles map[string]uint64, err error) {
	handles = make(map[string]uint64)
	err = t.dump(ctx, k, unix.NFT_MSG_GETSET, "", func(b []byte) {
		if name := attr.Name(attr.Find(b, unix.NFTA_SET_NAME)); strings.HasPrefix(name, "__") {
			handles[name] = attr.Uint64(attr.Find(b, setHandle))
		}
	})
	return handles, err
}

// NFTA_TABLE_HANDLE and NFTA_SET_HANDLE of linux/netfilter/nf_tables.h, which x/sys lacks.
const (
	tableHandle = 4
	setHandle   = 16
)
