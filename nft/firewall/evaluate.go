package firewall

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
)

// Bounds of a look: a host may have very many rules.
const (
	maxRules = 20_000  // that are read, of all chains that packets reach
	maxSteps = 500_000 // rules that are followed for all packets together
	maxDepth = 16      // the kernel's own limit of jumps
)

// ErrTooMany says that the host has more rules than are followed.
var ErrTooMany = errors.New("more rules at forward than kube-nft follows")

// truth says whether a condition holds.
type truth uint8

const (
	no truth = iota
	maybe
	yes
)

// and is whether both hold.
func (t truth) and(u truth) truth { return min(t, u) }

// not is the opposite.
func (t truth) not() truth { return yes - t }

// is returns yes or no.
func is(b bool) truth {
	if b {
		return yes
	}
	return no
}

// action is what a rule does when its conditions hold.
type action uint8

const (
	goesOn action = iota
	accepts
	refuses // drops or rejects
	jumps
	goesTo
	returns
)

// A decision is what a rule does with a packet.
type decision struct {
	match  truth
	action action
	chain  string // of jumps and goesTo
	// general says that no condition of the rule is about certain addresses, ports or interfaces.
	general bool
	// effect are side effects, if the rule matches.
	effect effect
	// mark is the new mark, if sets.
	mark field
	sets bool
}

// effect is what a rule does besides deciding.
type effect uint8

const (
	translating effect = 1 << iota // the destination, before our chains
	untracking                     // it keeps the packet from connection tracking
)

// A rule decides about packets.
type rule interface {
	decide(w *walk) decision
	name() string // for messages
}

// rules is the content of a chain.
type rules []rule

// chains gives the rules of the chains of one table.
type chains interface {
	chain(ctx context.Context, name string) (rules, error)
}

// A base is a base chain.
type base struct {
	where  string // "table inet filter, chain forward"
	table  string
	family nft.Family // of the table; 0 for inet
	name   string
	drops  bool
	chains chains
	legacy bool // of ip_tables; without a type, and with a hook and a priority only where they matter

	typ      string
	hook     uint32
	priority int32
}

// An outcome is what becomes of a packet in a base chain.
type outcome struct {
	refused bool
	// general says that what refuses it is about all Services.
	general bool
	by      string // what refuses it: "its policy" or a rule
	policy  bool   // it is the policy
	// unless names the first rule with uncertain conditions that may accept the packet.
	unless string
	// through are those of userChains that the packet reaches for certain.
	through []string
	// certain and possible are the side effects.
	certain, possible effect
}

// A walk follows one packet through one base chain.
type walk struct {
	ctx    context.Context
	packet *Packet
	from   chains
	steps  *int
	err    error
	// without names a chain that counts as missing.
	without string

	mark field // as the rules have changed it
	out  outcome
}

// follow returns what becomes of a packet in a base chain.
func (f *Firewall) follow(ctx context.Context, b *base, p *Packet) (outcome, error) {
	w := walk{ctx: ctx, packet: p, from: b.chains, steps: &f.steps, without: f.Without, mark: number(p.Mark)}
	if !w.run(b.name, 0, yes, true) && w.err == nil && b.drops {
		w.out.refused, w.out.general, w.out.policy, w.out.by = true, true, true, "its policy"
	}
	return w.out, w.err
}

// run follows a chain. It reports whether a rule has decided for certain. match says whether the packet
// reaches the chain; general, whether only general conditions lead there.
func (w *walk) run(name string, depth int, match truth, general bool) (decided bool) {
	if depth > maxDepth {
		w.err = ErrTooMany
		return true
	}
	if match == yes && slices.Contains(userChains, name) {
		w.out.through = append(w.out.through, name)
	}
	list, err := w.from.chain(w.ctx, name)
	if err != nil {
		w.err = err
		return true
	}
	for _, r := range list {
		if *w.steps++; *w.steps > maxSteps {
			w.err = ErrTooMany
			return true
		}
		d := r.decide(w)
		m := match.and(d.match)
		if m == no {
			continue
		}
		w.record(d, m)
		switch {
		case d.action == returns && m == match: // as certain as the packet is here
			return false
		case d.action == returns:
			match = m
		case d.action == accepts && m == yes:
			return true
		case d.action == accepts:
			w.out.unless = cmp.Or(w.out.unless, r.name())
			if m == match {
				return false
			}
		case d.action == refuses && m == yes:
			w.out.refused, w.out.general, w.out.by = true, general && d.general, r.name()
			return true
		case d.action == refuses && m == match:
			return false // it may be refused here; if it did not come here, it goes on behind
		case (d.action == jumps || d.action == goesTo) && d.chain == w.without && d.chain != "":
		case d.action == jumps, d.action == goesTo:
			if w.run(d.chain, depth+1, m, general && d.general) && m == yes {
				return true
			}
			if w.err != nil {
				return true
			}
			if d.action == goesTo && m == match {
				return false
			}
		}
	}
	return false
}

// record records the side effects of a rule that matches.
func (w *walk) record(d decision, m truth) {
	if w.out.possible |= d.effect; m == yes {
		w.out.certain |= d.effect
	}
	if !d.sets {
		return
	}
	if m == yes {
		w.mark = d.mark
		return
	}
	mixed := unknownField(4) // either the old one or the new one
	for i := range mixed.value {
		mixed.value[i] = w.mark.value[i]
		mixed.known[i] = w.mark.known[i] & d.mark.known[i] &^ (w.mark.value[i] ^ d.mark.value[i])
	}
	w.mark = mixed
}
