package nft

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// A Packet is the first packet of a connection, as a Table's chains see it before any translation.
type Packet struct {
	Source, Destination netip.Addr
	Protocol            uint8  // IANA number
	Port                uint16 // destination port; 0 for protocols without ports
	SourcePort          uint16 // 0 if it is not known
	Interface           string // where it arrived; empty if this node sends it
	// SourceLocal and DestinationLocal say whether the addresses are this node's own.
	SourceLocal, DestinationLocal bool
}

// A TraceResult is what becomes of a connection.
type TraceResult struct {
	Outcome string // "accept" (not touched), "dnat", "drop", "reject" or "redirect" (answered by this node)
	// Endpoints lists the possible targets of the translation; a single one if an affinity entry or
	// the hash of the client names it. Shares are their parts of all connections; nil if they are equal.
	Endpoints []netip.AddrPort
	Shares    []float64
	// Hash says what names the endpoint by its hash: HashAddress, HashAddressPort or nothing.
	Hash string
	// Dropped lists the endpoints to which the connection would be translated and then dropped; Endpoints does not have
	// them.
	Dropped []netip.AddrPort
	// Masquerade says whether the connection gets a source address of this node. Hairpin lists the
	// endpoints for which that depends on who connects.
	Masquerade bool
	Hairpin    []netip.AddrPort
	// Holes counts indexes without an endpoint before one that has one. Uneven says that the
	// endpoints are not as likely as their places in the list are many. Both are zero unless the table
	// is broken.
	Holes  int
	Uneven bool
	// Foreign lists the rules on the way that kube-nft never writes. The trace passes over them: it
	// does not know their effect.
	Foreign []Step
	Steps   []Step
}

// What a slot of a list may follow from: see HashedIndex.
const (
	HashAddress     = "source-ip"
	HashAddressPort = "source-ip-port"
)

// A Step is a rule that applied.
type Step struct {
	Chain      string `json:"chain"`
	Rule       string `json:"rule"`
	Index      int    `json:"-"`                 // of the rule in the chain
	Set        string `json:"set,omitempty"`     // that holds Element; empty if no element decided
	Element    string `json:"element,omitempty"` // the element that decided, as nft prints it
	Key        string `json:"-"`                 // of the element, as the set holds it
	Masquerade bool   `json:"-"`                 // the rule asks for masquerading
}

// String names what decided the step, and where that stands.
func (s Step) String() string {
	if s.Element != "" {
		return "element of " + s.Set + ": " + s.Element
	}
	return "rule of " + s.Chain + ": " + s.Rule
}

// Trace follows a new connection through the table, from the base chain that translates
// destinations to the one that translates sources. It uses nothing but the content of the table.
func (t *Table) Trace(p Packet) TraceResult {
	tr := tracer{table: t, packet: p, original: p, at: make(map[netip.AddrPort]int)}
	hook := "prerouting"
	if p.Interface == "" {
		hook = "output"
	}
	tr.result.Outcome = "accept"
	for _, base := range t.BaseChains(hook) {
		if tr.chain(base.Name) == done && tr.result.Outcome != "accept" {
			break
		}
	}
	tr.result.Uneven = tr.uneven()
	if len(tr.result.Endpoints) == len(tr.shares) && unequal(tr.shares) {
		tr.result.Shares = tr.shares
	}
	if len(tr.result.Endpoints) > 0 && tr.result.Outcome != "dnat" { // some connections end so
		tr.result.Outcome, tr.result.Uneven = "dnat", true
	}
	if tr.result.Outcome == "dnat" {
		tr.translated()
	}
	return tr.result
}

// BaseChains lists the base chains of a hook in the order in which packets meet them.
func (t *Table) BaseChains(point string) (chains []*Chain) {
	for _, chain := range t.Chains {
		if chain.Hook != nil && chain.Hook.Point == point {
			chains = append(chains, chain)
		}
	}
	slices.SortFunc(chains, func(a, b *Chain) int {
		return cmp.Or(cmp.Compare(a.Hook.Priority, b.Hook.Priority), strings.Compare(a.Name, b.Name))
	})
	return chains
}

// Matches reports whether a packet matches a statement that needs no set.
func Matches(stmt Stmt, f Family, p Packet) bool {
	tr := tracer{table: NewTable(f), packet: p, result: TraceResult{Steps: make([]Step, 1)}}
	return stmt.trace(&tr, 0) == next
}

type tracer struct {
	table    *Table
	packet   Packet
	original Packet // before any translation
	mark     uint32
	result   TraceResult
	depth    int
	shares   []float64              // of the endpoints of result
	places   []int                  // in the longest list that they were drawn from
	at       map[netip.AddrPort]int // where in the lists above an endpoint is
	missed   []float64              // the chance of each draw so far to hit nothing
}

// flow is how evaluation goes on after a statement, a rule or a chain.
type flow uint8

const (
	next  flow = iota // with the next one
	skip              // with the next rule: the statement did not match
	leave             // in the chain that jumped here
	done              // not at all: what becomes of the packet is decided
)

// maxDepth bounds the walk; the kernel allows 16 jumps (NFT_JUMP_STACK_SIZE).
const maxDepth = 16

func (t *tracer) chain(name string) flow {
	chain := t.table.Chains[name]
	if chain == nil || t.depth == maxDepth {
		return leave
	}
	t.depth++
	defer func() { t.depth-- }()
	for i, rule := range chain.Rules {
		if f := t.rule(name, i, rule); f == leave || f == done {
			return f
		}
	}
	return next
}

func (t *tracer) rule(chain string, index int, rule Rule) flow {
	t.result.Steps = append(t.result.Steps, Step{Chain: chain, Index: index, Rule: rule.Text(t.table.Family)})
	step := len(t.result.Steps) - 1
	for _, stmt := range rule {
		if f := stmt.trace(t, step); f != next {
			if f == skip {
				t.result.Steps = t.result.Steps[:step]
			}
			return f
		}
	}
	return next
}

func matched(ok, not bool) flow {
	if ok != not {
		return next
	}
	return skip
}

// foreign records a rule or an element whose effect is unknown. The trace passes over it.
func (t *tracer) foreign(step int) flow {
	t.result.Foreign = append(t.result.Foreign, t.result.Steps[step])
	return skip
}

// decided records the element that decided a step.
func (t *tracer) decided(step int, held *Elements, key string) {
	s := &t.result.Steps[step]
	s.Set, s.Element, s.Key = held.Set.Name, held.ElementText(t.table.Family, key), key
}

func (t *tracer) seal(verdict string) flow {
	t.result.Outcome = verdict
	return done
}

// key builds the key of a lookup, without the random or hashed index if it has one; index is that
// part.
func (t *tracer) key(parts []Part) (key string, index Part) {
	var b []byte
	for _, part := range parts {
		switch part.kind {
		case partSource, partOriginalSource:
			source := t.packet.Source
			if part.number != 0 {
				prefix, _ := source.Prefix(int(part.number))
				source = prefix.Addr()
			}
			if part.inserted != 0 {
				b = append(b, NumberedKey(IP6, part.inserted, source)...)
				break
			}
			b = AppendAddr(b, source)
		case partDestination:
			b = AppendAddr(b, t.packet.Destination)
		case partOriginalDestination:
			b = AppendAddr(b, t.original.Destination)
		case partProtocol:
			b = AppendProtocol(b, t.packet.Protocol)
		case partPort:
			b = AppendPort(b, t.packet.Port)
		case partOriginalPort:
			b = AppendPort(b, t.original.Port)
		case partConstant:
			b = AppendNumber(b, part.number)
		case partRandom, partHashed, partHashedPorts:
			index = part
		}
	}
	if len(parts) == 1 { // a field is padded among others only
		switch parts[0].kind {
		case partProtocol:
			b = b[:1]
		case partPort, partOriginalPort:
			b = b[:2]
		}
	}
	return string(b), index
}

// translated evaluates what follows the translation, for each endpoint that the connection may go to.
func (t *tracer) translated() {
	mark, endpoints, shares, steps, masqueraded := t.mark, t.result.Endpoints, t.result.Shares, t.result.Steps, 0
	chains := t.table.BaseChains("postrouting")
	t.result.Endpoints, t.result.Shares = nil, nil
	for i, ep := range endpoints {
		t.packet.Destination, t.packet.Port, t.mark = ep.Addr(), ep.Port(), mark
		t.result.Outcome, t.result.Masquerade = "dnat", false
		for _, base := range chains {
			t.result.Steps = nil // chains before the last one only update affinity maps, unless they drop
			if t.chain(base.Name); t.result.Outcome == "drop" {
				break
			}
		}
		for _, step := range t.result.Steps {
			if !slices.Contains(steps, step) {
				steps = append(steps, step)
			}
		}
		if t.result.Outcome == "drop" {
			t.result.Dropped = append(t.result.Dropped, ep)
			continue
		}
		t.result.Endpoints = append(t.result.Endpoints, ep)
		if shares != nil {
			t.result.Shares = append(t.result.Shares, shares[i])
		}
		if t.result.Masquerade {
			masqueraded++
			t.result.Hairpin = append(t.result.Hairpin, ep)
		}
	}
	t.packet, t.result.Steps, t.result.Outcome = t.original, steps, "dnat"
	if len(t.result.Endpoints) == 0 {
		t.result.Outcome = "drop"
	}
	if t.result.Masquerade = masqueraded > 0 && masqueraded == len(t.result.Endpoints); t.result.Masquerade {
		t.result.Hairpin = nil
	}
}

// draw evaluates a random choice. The share of the connections that it misses goes on with the next
// rule. port is that of the endpoints if the elements are addresses, else 0.
func (t *tracer) draw(held *Elements, key string, modulus int, port uint16) flow {
	missed, holes := 0, 0 // a hole is a place that is missing before one that is there
	share := t.share() / float64(modulus)
	places := make(map[netip.AddrPort]int)
	for i := range modulus {
		ep, ok := AddrPortOf(held.Map[IndexedKey(key, i)].Data)
		if !ok {
			missed++
			continue
		}
		if port != 0 {
			ep = netip.AddrPortFrom(ep.Addr(), port)
		}
		holes = missed
		t.choose(ep, share)
		places[ep]++
	}
	for ep, n := range places {
		t.places[t.at[ep]] = max(t.places[t.at[ep]], n)
	}
	t.result.Holes = max(t.result.Holes, holes)
	t.missed = append(t.missed, float64(missed)/float64(modulus))
	if missed > 0 {
		return skip
	}
	return t.seal("dnat")
}

// hash evaluates a choice by the client. If that takes a source port that is not known, any slot may
// be the client's.
func (t *tracer) hash(step int, held *Elements, key string, index Part) flow {
	t.result.Hash = HashAddress
	if ports, _ := index.HashesPorts(); ports {
		t.result.Hash = HashAddressPort
		if t.packet.SourcePort == 0 {
			return t.draw(held, key, int(index.number), 0)
		}
	}
	key = IndexedKey(key, index.index(t.packet.Source, t.packet.SourcePort))
	ep, ok := AddrPortOf(held.Map[key].Data)
	if !ok {
		return skip
	}
	t.result.Endpoints = []netip.AddrPort{ep}
	t.decided(step, held, key)
	return t.seal("dnat")
}

// share is the part of the connections that no draw so far has hit.
func (t *tracer) share() float64 {
	share := 1.0
	for _, missed := range t.missed {
		share *= missed
	}
	return share
}

// choose gives an endpoint a share of the connections.
func (t *tracer) choose(ep netip.AddrPort, share float64) {
	i, ok := t.at[ep]
	if !ok {
		i = len(t.result.Endpoints)
		t.at[ep] = i
		t.result.Endpoints, t.shares, t.places = append(t.result.Endpoints, ep), append(t.shares, 0), append(t.places, 0)
	}
	t.shares[i] += share
}

// uneven reports whether the shares of places differ by more than one in a thousand. An endpoint of
// more weight has more places.
func (t *tracer) uneven() bool {
	each := slices.Clone(t.shares)
	for i := range each {
		each[i] /= float64(t.places[i])
	}
	return unequal(each)
}

// unequal reports whether some share is larger than another by more than one in a thousand.
func unequal(shares []float64) bool {
	return len(shares) > 0 && slices.Max(shares) > slices.Min(shares)*1.001
}
