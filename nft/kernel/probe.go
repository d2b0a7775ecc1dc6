package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// Features are abilities of a kernel that kube-nft can do without.
type Features struct {
	IP6 bool // nat chains in the family ip6
	// OwnerPersist says that a table can belong to our socket and outlive it (table flags
	// owner and persist, Linux 6.9).
	OwnerPersist bool
	Lacks        nft.Lacks
}

// A FeatureError says that the kernel lacks something that kube-nft needs. It unwraps to the errno.
type FeatureError struct {
	Family  nft.Family
	Feature string // in words
	Option  string // the option of the kernel's configuration, or the first version
	Err     error
}

func (e *FeatureError) Error() string {
	return fmt.Sprintf("this kernel lacks %s in family %s: %v; it needs %s", e.Feature, e.Family.NFT(), e.Err, e.Option)
}

// Unwrap returns the kernel's reason.
func (e *FeatureError) Unwrap() error { return e.Err }

// Probe tries what the kernel can do, each thing in a table of its own. No packet meets these
// tables, and they are gone when Probe returns. A needed feature that is missing is a
// *FeatureError. IPv6 is not needed; but if there are IPv6 nat chains, the other features must be
// there for IPv6 too.
func (k *Client) Probe(ctx context.Context) (have Features, err error) {
	if err := k.probeFamily(ctx, nft.IP); err != nil {
		return have, err
	}
	if have.IP6, err = succeeded(k.try(ctx, nft.IP6, natProbe())); err != nil {
		return have, err
	}
	if have.IP6 {
		if err := k.probeFamily(ctx, nft.IP6); err != nil {
			return have, err
		}
	}
	if k.destroys, err = k.probeDestroy(ctx); err != nil {
		return have, err
	}
	if err := k.probeOptional(ctx, &have.Lacks); err != nil {
		return have, err
	}
	have.OwnerPersist, err = succeeded(k.tryFlags(ctx, nft.IP, probe{}, wire.TableOwner|wire.TablePersist))
	return have, err
}

func (k *Client) probeFamily(ctx context.Context, f nft.Family) error {
	for _, p := range probes() {
		if missing, err := k.missing(ctx, f, p); missing != nil || err != nil {
			return cmp.Or(missing, err)
		}
	}
	return nil
}

// missing tries a probe. missing is a *FeatureError if the kernel cannot do it.
func (k *Client) missing(ctx context.Context, f nft.Family, p probe) (missing, failure error) {
	tried := k.try(ctx, f, p)
	ok, err := succeeded(tried)
	if err != nil || ok {
		return nil, err
	}
	why := cmp.Or(errors.Unwrap(tried), tried)
	return &FeatureError{Family: f, Feature: p.feature, Option: p.options[f], Err: why}, nil
}

// probeOptional tries what only some Services need: consistent hashing, and addresses that answer echo requests. One
// family stands for both: the modules serve both.
func (k *Client) probeOptional(ctx context.Context, lacks *nft.Lacks) (err error) {
	slots := &nft.Set{Name: "slots", Key: []nft.Field{nft.FieldAddr, nft.FieldIndex},
		Data: []nft.Field{nft.FieldAddr, nft.FieldPort}}
	hash := probe{feature: "hashes of packets", options: inBoth("CONFIG_NFT_HASH (module nft_hash)"),
		sets: []*nft.Set{slots}, chains: []*nft.Chain{natChain("prerouting", nft.Rule{nft.DNATFrom{
			Key: []nft.Part{nft.Destination, nft.HashedIndex(2, true)}, Map: slots.Name, Protocol: unix.IPPROTO_TCP}})}}
	if lacks.Hash, err = k.missing(ctx, nft.IP, hash); err != nil {
		return err
	}
	redirect := probe{feature: "redirecting to this host", options: inBoth("CONFIG_NFT_REDIR (module nft_redir)"),
		chains: []*nft.Chain{natChain("prerouting", nft.Rule{nft.EchoRequest{}, nft.Redirect{}})}}
	lacks.Redirect, err = k.missing(ctx, nft.IP, redirect)
	return err
}

// succeeded returns the outcome of a probe, or the error that leaves it open.
func succeeded(err error) (ok bool, failure error) {
	switch {
	case err == nil:
		return true, nil
	case isMissing(err):
		return false, nil
	}
	return false, fmt.Errorf("probe nf_tables: %w", err)
}

// isMissing reports whether a refusal means that the kernel does not know a thing. Other reasons
// are missing permission or memory.
func isMissing(err error) bool {
	return slices.ContainsFunc([]unix.Errno{unix.ENOENT, unix.EOPNOTSUPP, unix.EINVAL, unix.EAFNOSUPPORT,
		unix.EPROTONOSUPPORT}, func(errno unix.Errno) bool { return errors.Is(err, errno) })
}

// A probe is one thing that the kernel must be able to do.
type probe struct {
	feature string
	options map[nft.Family]string
	sets    []*nft.Set
	chains  []*nft.Chain
	empty   bool // its chains have no rules
}

// probeTable is the table of all probes.
const probeTable = "kube-nft-probe"

// try makes what the probe needs in a new table and deletes the table. The kernel checks what a
// rule may do at its hook when it commits, so these are two batches; meanwhile the table is
// dormant, so that no packet meets it. Empty chains come and go in one batch: the kernel takes
// their hooks, which is what the probe tests.
func (k *Client) try(ctx context.Context, f nft.Family, p probe) error {
	if p.empty {
		return k.tryFlags(ctx, f, p, 0)
	}
	b := nft.Batch{Ops: p.ops(f)}
	if err := k.commitProbe(ctx, &b, unix.NFT_TABLE_F_DORMANT); err != nil {
		return err
	}
	b.Ops = []nft.Op{{Verb: nft.Delete, Family: f, Table: &nft.Table{}}}
	if err := k.commitProbe(ctx, &b, 0); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil // another process that probes, or flushes the ruleset, has deleted the table
}

// tryFlags makes a table with flags and deletes it in the same batch.
func (k *Client) tryFlags(ctx context.Context, f nft.Family, p probe, flags uint32) error {
	b := nft.Batch{Ops: append(p.ops(f), nft.Op{Verb: nft.Delete, Family: f, Table: &nft.Table{}})}
	return k.commitProbe(ctx, &b, flags)
}

func (k *Client) commitProbe(ctx context.Context, b *nft.Batch, flags uint32) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return k.commit(b, wire.Scope{Table: probeTable, Flags: flags})
}

// ops make the probe's table, and replace a table that an interrupted probe has left.
func (p *probe) ops(f nft.Family) []nft.Op {
	table := &nft.Table{Family: f}
	ops := []nft.Op{{Verb: nft.Add, Family: f, Table: table}, {Verb: nft.Delete, Family: f, Table: table},
		{Verb: nft.Add, Family: f, Table: table}}
	for _, s := range p.sets {
		ops = append(ops, nft.Op{Verb: nft.Add, Family: f, Set: s})
	}
	for _, c := range p.chains {
		ops = append(ops, nft.Op{Verb: nft.Add, Family: f, Chain: c})
		if len(c.Rules) > 0 {
			ops = append(ops, nft.Op{Verb: nft.Add, Family: f, Chain: c, Rules: c.Rules})
		}
	}
	return ops
}

// natProbe tries the four hooks of our base chains.
func natProbe() probe {
	return probe{
		feature: "nat chains", options: inBoth("CONFIG_NF_TABLES, CONFIG_NFT_NAT and CONFIG_NF_NAT (module nft_chain_nat)"),
		chains: []*nft.Chain{natChain("prerouting"), natChain("input"), natChain("output"), natChain("postrouting")},
		empty:  true,
	}
}

// probes lists what kube-nft needs. Each probe comes after the probes that it depends on.
func probes() []probe {
	frontend := []nft.Field{nft.FieldAddr, nft.FieldProtocol, nft.FieldPort}
	endpoints := &nft.Set{Name: "endpoints", Key: append(frontend, nft.FieldIndex),
		Data: []nft.Field{nft.FieldAddr, nft.FieldPort}}
	numbered := &nft.Set{Name: "numbered", Key: []nft.Field{nft.FieldIndex, nft.FieldAddr}}
	prefixes := &nft.Set{Name: "prefixes", Key: []nft.Field{nft.FieldAddr}, Interval: true}
	affinity := &nft.Set{Name: "affinity", Key: []nft.Field{nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr},
		Dynamic: true, Size: 16}
	numbers := &nft.Set{Name: "numbers", Key: []nft.Field{nft.FieldIndex}}
	random := []nft.Part{nft.Destination, nft.Protocol, nft.Port, nft.RandomIndex(2)}
	return []probe{
		natProbe(),
		{feature: "fib lookups", options: map[nft.Family]string{nft.IP: "CONFIG_NFT_FIB_IPV4 (module nft_fib_ipv4)",
			nft.IP6: "CONFIG_NFT_FIB_IPV6 (module nft_fib_ipv6)"},
			chains: []*nft.Chain{natChain("prerouting",
				nft.Rule{nft.AddressLocal{Of: nft.Source}}, nft.Rule{nft.AddressLocal{Of: nft.Destination}})}},
		{feature: "connection tracking matches", options: inBoth("CONFIG_NFT_CT (module nft_ct)"),
			chains: []*nft.Chain{natChain("postrouting", nft.Rule{nft.Translated{}})}},
		{feature: "masquerading", options: inBoth("CONFIG_NFT_MASQ (module nft_masq)"),
			chains: []*nft.Chain{natChain("postrouting", nft.Rule{nft.Masquerade{}})}},
		{feature: "the random number generator", options: inBoth("CONFIG_NFT_NUMGEN (module nft_numgen)"),
			sets: []*nft.Set{numbers},
			chains: []*nft.Chain{natChain("prerouting", nft.Rule{nft.InSet{Key: []nft.Part{nft.RandomIndex(2)},
				Set: numbers.Name}})}},
		{feature: "destination NAT from a map of concatenations", options: inBoth("CONFIG_NFT_NAT (module nft_nat)"),
			sets: []*nft.Set{endpoints}, chains: []*nft.Chain{natChain("prerouting",
				nft.Rule{nft.DNATFrom{Key: random, Map: endpoints.Name, Protocol: unix.IPPROTO_TCP}})}},
		{feature: "rejecting in nat prerouting",
			options: map[nft.Family]string{nft.IP: "Linux 5.9 and CONFIG_NFT_REJECT_IPV4 (module nft_reject_ipv4)",
				nft.IP6: "Linux 5.9 and CONFIG_NFT_REJECT_IPV6 (module nft_reject_ipv6)"},
			chains: []*nft.Chain{natChain("prerouting", nft.Rule{nft.RejectTCP{}}, nft.Rule{nft.Reject{}})}},
		{feature: "sets of prefixes", options: inBoth("Linux 3.16"),
			sets: []*nft.Set{prefixes}},
		{feature: "lookups of a masked address under a number",
			options: inBoth("Linux 4.10 and CONFIG_NFT_NUMGEN (module nft_numgen)"),
			sets:    []*nft.Set{numbered}, chains: []*nft.Chain{natChain("prerouting",
				nft.Rule{nft.InSet{Key: []nft.Part{nft.Constant(1), nft.SourcePrefix(20)}, Set: numbered.Name}})}},
		{feature: "sets that packets fill, with timeouts", options: inBoth("Linux 4.1"),
			sets:   []*nft.Set{affinity},
			chains: []*nft.Chain{natChain("postrouting", nft.Rule{nft.Update{Map: affinity.Name, Timeout: 60}})}},
	}
}

func inBoth(option string) map[nft.Family]string {
	return map[nft.Family]string{nft.IP: option, nft.IP6: option}
}

// natChain is a base chain; its priority does not matter.
func natChain(point string, rules ...nft.Rule) *nft.Chain {
	return &nft.Chain{Name: point, Hook: &nft.Hook{Type: "nat", Point: point}, Rules: rules}
}

// probeDestroy finds out whether the kernel knows Destroy.
func (k *Client) probeDestroy(ctx context.Context) (ok bool, err error) {
	set := &nft.Set{Name: "addresses", Key: []nft.Field{nft.FieldAddr}}
	p := probe{sets: []*nft.Set{set}}
	b := nft.Batch{Ops: append(p.ops(nft.IP),
		nft.Op{Verb: nft.Destroy, Family: nft.IP, Set: set, Elements: []nft.KeyedElement{{Key: "\x7f\x00\x00\x01"}}},
		nft.Op{Verb: nft.Delete, Family: nft.IP, Table: &nft.Table{}})}
	return succeeded(k.commitProbe(ctx, &b, 0))
}
