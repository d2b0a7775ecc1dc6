package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Features are what a kernel can do beyond what kube-nft cannot do without.
type Features struct {
	IP6 bool // nat chains in the family ip6
	// OwnerPersist says that a table can belong to our socket and outlive it (table flags
	// owner and persist, Linux 6.9).
	OwnerPersist bool
}

// A FeatureError says that the kernel lacks something without which there are no Services.
// It unwraps to the errno.
type FeatureError struct {
	Family  Family
	Feature string // in words
	Option  string // of the kernel's configuration, or the version that brought it
	Err     error
}

func (e *FeatureError) Error() string {
	return fmt.Sprintf("this kernel lacks %s in family %s: %v; it needs %s", e.Feature, e.Family.NFT(), e.Err, e.Option)
}

// Unwrap returns the kernel's reason.
func (e *FeatureError) Unwrap() error { return e.Err }

// Probe finds out what the kernel can do by doing it, each thing in a table of its own that no
// packet meets and that is gone when Probe returns. A feature that is needed and missing is a
// *FeatureError; IPv6 is not needed, but if there are nat chains, so must be the rest.
func (k *Kernel) Probe(ctx context.Context) (have Features, err error) {
	if err := k.probeFamily(ctx, IP); err != nil {
		return have, err
	}
	if have.IP6, err = succeeded(k.try(ctx, IP6, natProbe())); err != nil {
		return have, err
	}
	if have.IP6 {
		if err := k.probeFamily(ctx, IP6); err != nil {
			return have, err
		}
	}
	if k.destroys, err = k.probeDestroy(ctx); err != nil {
		return have, err
	}
	have.OwnerPersist, err = succeeded(k.tryFlags(ctx, IP, probe{}, tableFlagOwner|tableFlagPersist))
	return have, err
}

func (k *Kernel) probeFamily(ctx context.Context, f Family) error {
	for _, p := range probes() {
		tried := k.try(ctx, f, p)
		if ok, err := succeeded(tried); err != nil {
			return err
		} else if !ok {
			return &FeatureError{Family: f, Feature: p.feature, Option: p.options[f], Err: reason(tried)}
		}
	}
	return nil
}

// succeeded tells the outcome of a probe, or why there is none.
func succeeded(err error) (ok bool, failure error) {
	switch {
	case err == nil:
		return true, nil
	case isMissing(err):
		return false, nil
	}
	return false, fmt.Errorf("probe nf_tables: %w", err)
}

// reason is the kernel's reason for refusing a batch.
func reason(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

// isMissing reports whether a refusal means that the kernel does not know a thing, and not
// that we may not do it or that it is out of memory.
func isMissing(err error) bool {
	for _, errno := range []unix.Errno{unix.ENOENT, unix.EOPNOTSUPP, unix.EINVAL, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// A probe is something that the kernel must be able to do.
type probe struct {
	feature string
	options map[Family]string
	sets    []*Set
	chains  []*Chain
	empty   bool // its chains have no rules
}

// probeTable is the table in which probes are made.
const probeTable = "kube-nft-probe"

// try makes what the probe asks for in a new table and takes the table away again. The kernel
// checks what a rule may do at its hook when it commits, so these are two batches; the table is
// dormant, so that no packet meets it meanwhile. Empty chains are made and taken away in one
// batch: they do take their hooks, which is what is to be tried.
func (k *Kernel) try(ctx context.Context, f Family, p probe) error {
	if p.empty {
		return k.tryFlags(ctx, f, p, 0)
	}
	b := Batch{Ops: p.ops(f)}
	if err := k.commitProbe(ctx, &b, unix.NFT_TABLE_F_DORMANT); err != nil {
		return err
	}
	b.Ops = []Op{{Verb: Delete, Family: f, Table: &Table{}}}
	return k.commitProbe(ctx, &b, 0)
}

// tryFlags makes a table with flags and takes it away in the same batch.
func (k *Kernel) tryFlags(ctx context.Context, f Family, p probe, flags uint32) error {
	b := Batch{Ops: append(p.ops(f), Op{Verb: Delete, Family: f, Table: &Table{}})}
	return k.commitProbe(ctx, &b, flags)
}

func (k *Kernel) commitProbe(ctx context.Context, b *Batch, flags uint32) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return k.commit(b, scope{table: probeTable, flags: flags})
}

// ops make the probe's table, in place of one that an interrupted probe may have left.
func (p *probe) ops(f Family) []Op {
	table := &Table{Family: f}
	ops := []Op{{Verb: Add, Family: f, Table: table}, {Verb: Delete, Family: f, Table: table}, {Verb: Add, Family: f, Table: table}}
	for _, s := range p.sets {
		ops = append(ops, Op{Verb: Add, Family: f, Set: s})
	}
	for _, c := range p.chains {
		ops = append(ops, Op{Verb: Add, Family: f, Chain: c})
		if len(c.Rules) > 0 {
			ops = append(ops, Op{Verb: Add, Family: f, Chain: c, Rules: c.Rules})
		}
	}
	return ops
}

// natProbe are the four hooks that our base chains are in.
func natProbe() probe {
	return probe{
		feature: "nat chains", options: inBoth("CONFIG_NF_TABLES, CONFIG_NFT_NAT and CONFIG_NF_NAT (module nft_chain_nat)"),
		chains: []*Chain{natChain("prerouting"), natChain("input"), natChain("output"), natChain("postrouting")},
		empty:  true,
	}
}

// probes lists what is needed, each thing after those that it needs itself.
func probes() []probe {
	frontend := []Field{FieldAddr, FieldProtocol, FieldPort}
	protocols := &Set{Name: TransportProtocols, Key: []Field{FieldProtocol}}
	endpoints := &Set{Name: "endpoints", Key: append(frontend, FieldIndex), Data: []Field{FieldAddr, FieldPort}}
	ranges := &Set{Name: "ranges", Key: append(frontend, FieldAddr), Interval: true}
	prefixes := &Set{Name: "prefixes", Key: []Field{FieldAddr}, Interval: true}
	affinity := &Set{Name: "affinity", Key: []Field{FieldAddr}, Data: []Field{FieldAddr}, Dynamic: true, Size: 16}
	numbers := &Set{Name: "numbers", Key: []Field{FieldIndex}}
	random := []Part{Destination, Protocol, Port, RandomIndex(2)}
	return []probe{
		natProbe(),
		{feature: "fib lookups", options: map[Family]string{IP: "CONFIG_NFT_FIB_IPV4 (module nft_fib_ipv4)", IP6: "CONFIG_NFT_FIB_IPV6 (module nft_fib_ipv6)"},
			chains: []*Chain{natChain("prerouting", Rule{SourceLocal{}}, Rule{DestinationLocal{}})}},
		{feature: "connection tracking matches", options: inBoth("CONFIG_NFT_CT (module nft_ct)"),
			chains: []*Chain{natChain("postrouting", Rule{Translated{}})}},
		{feature: "masquerading", options: inBoth("CONFIG_NFT_MASQ (module nft_masq)"),
			chains: []*Chain{natChain("postrouting", Rule{Masquerade{}})}},
		{feature: "the random number generator", options: inBoth("CONFIG_NFT_NUMGEN (module nft_numgen)"),
			sets: []*Set{numbers}, chains: []*Chain{natChain("prerouting", Rule{InSet{Key: []Part{RandomIndex(2)}, Set: numbers.Name}})}},
		{feature: "destination NAT from a map of concatenations", options: inBoth("CONFIG_NFT_NAT (module nft_nat)"),
			sets: []*Set{protocols, endpoints}, chains: []*Chain{natChain("prerouting", Rule{DNATFrom{Key: random, Map: endpoints.Name}})}},
		{feature: "rejecting in nat prerouting", options: map[Family]string{IP: "Linux 5.9 and CONFIG_NFT_REJECT_IPV4 (module nft_reject_ipv4)", IP6: "Linux 5.9 and CONFIG_NFT_REJECT_IPV6 (module nft_reject_ipv6)"},
			chains: []*Chain{natChain("prerouting", Rule{RejectTCP{}}, Rule{Reject{}})}},
		{feature: "sets of ranges", options: inBoth("Linux 5.6"),
			sets: []*Set{prefixes, ranges}},
		{feature: "sets that packets fill, with timeouts", options: inBoth("Linux 4.1"),
			sets: []*Set{affinity}, chains: []*Chain{natChain("postrouting", Rule{Update{Map: affinity.Name, Timeout: 60}})}},
	}
}

func inBoth(option string) map[Family]string { return map[Family]string{IP: option, IP6: option} }

// natChain is a base chain at a priority of no importance.
func natChain(point string, rules ...Rule) *Chain {
	return &Chain{Name: point, Hook: &Hook{Type: "nat", Point: point}, Rules: rules}
}

// probeDestroy finds out whether the kernel knows Destroy.
func (k *Kernel) probeDestroy(ctx context.Context) (ok bool, err error) {
	set := &Set{Name: "addresses", Key: []Field{FieldAddr}}
	p := probe{sets: []*Set{set}}
	b := Batch{Ops: append(p.ops(IP),
		Op{Verb: Destroy, Family: IP, Set: set, Elements: []KeyedElement{{Key: "\x7f\x00\x00\x01"}}},
		Op{Verb: Delete, Family: IP, Table: &Table{}})}
	return succeeded(k.commitProbe(ctx, &b, 0))
}
