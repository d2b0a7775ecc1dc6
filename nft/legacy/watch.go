package legacy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// A Watch finds out, again and again, whether kube-proxy has rules for packets. A look costs about
// 0.1 ms where it has none. It is for one goroutine.
type Watch struct {
	kernel *kernel.Client
	tables map[string]xtableLook // by family: the table nat of ip_tables
}

// A xtableLook is what a look has found in a table of ip_tables.
type xtableLook struct {
	info   string // the kernel's summary of the table, which changes with the number of its rules
	served bool
}

// serviceChain is the chain by which every mode of kube-proxy that uses iptables is known. The kubelet
// never makes it, and a removal that has to leave the chain leaves it without rules.
const serviceChain = "KUBE-SERVICES"

// nodePortChain is the chain of node ports in these modes.
const nodePortChain = "KUBE-NODEPORTS"

// NewWatch returns a Watch of the network namespace of the calling thread.
func NewWatch() (*Watch, error) {
	k, err := kernel.Open()
	if err != nil {
		return nil, err
	}
	return &Watch{kernel: k, tables: map[string]xtableLook{}}, nil
}

// Close closes the Watch.
func (w *Watch) Close() error { return w.kernel.Close() }

// Look lists the places where kube-proxy has rules now, as in "legacy ip nat". It changes nothing, and
// makes the kernel load nothing. After an error it returns what it found elsewhere.
func (w *Watch) Look(ctx context.Context) (places []string, err error) {
	for _, f := range nft.Families {
		served, xtablesErr := w.xtables(f)
		if served {
			places = append(places, fmt.Sprintf("%s %s nat", Xtables, f.NFT()))
		}
		found, nftablesErr := w.nftables(ctx, f)
		places = append(places, found...)
		err = cmp.Or(err, xtablesErr, nftablesErr)
	}
	return places, err
}

// xtables reports whether the table nat of ip_tables sends to Services. It reads the table only if
// its summary has changed.
func (w *Watch) xtables(f nft.Family) (served bool, err error) {
	tables, err := xtablesTables(f)
	if err != nil || !slices.Contains(tables, "nat") {
		delete(w.tables, f.NFT())
		return false, err
	}
	s, err := openSocket(f)
	if err != nil {
		return false, err
	}
	defer s.close()
	info, err := s.info("nat")
	if err != nil {
		return false, fmt.Errorf("%s %s nat: %w", Xtables, f.NFT(), err)
	}
	if last, ok := w.tables[f.NFT()]; ok && last.info == string(info) {
		return last.served, nil
	}
	x, err := s.read("nat")
	if err != nil {
		return false, fmt.Errorf("%s %s nat: %w", Xtables, f.NFT(), err)
	}
	served = slices.ContainsFunc(x.rules.ruleset("nat").chains, func(c chain) bool {
		return c.name == serviceChain && len(c.rules) > 0
	})
	w.tables[f.NFT()] = xtableLook{string(info), served}
	return served, nil
}

// nftables lists the places in nf_tables: a table of kube-proxy's own, or iptables-nft's table nat
// with rules in the chain of Services.
func (w *Watch) nftables(ctx context.Context, f nft.Family) (places []string, err error) {
	nat, proxy := false, false
	err = w.kernel.Dump(ctx, unix.NFT_MSG_GETTABLE, f, func(*attr.Writer) {}, func(r attr.Reply) {
		switch attr.Name(attr.Find(r.Attributes(), unix.NFTA_TABLE_NAME)) {
		case ProxyTable:
			proxy = true
		case "nat":
			nat = true
		}
	})
	if proxy && err == nil {
		t := &nfTable{family: f, rules: ruleset{table: ProxyTable}}
		if _, err = t.readChains(ctx, w.kernel); !t.isKept() {
			places = append(places, fmt.Sprintf("%s %s", ProxyTables, f.NFT()))
		}
	}
	if err != nil || !nat {
		return places, err
	}
	rules := 0
	err = w.kernel.Dump(ctx, unix.NFT_MSG_GETRULE, f, func(which *attr.Writer) {
		which.Name(unix.NFTA_RULE_TABLE, "nat")
		which.Name(unix.NFTA_RULE_CHAIN, serviceChain)
	}, func(r attr.Reply) {
		// Kernels that do not know the filter list all rules of the table.
		if attr.Name(attr.Find(r.Attributes(), unix.NFTA_RULE_CHAIN)) == serviceChain {
			rules++
		}
	})
	if rules > 0 {
		places = append(places, fmt.Sprintf("%s %s nat", Compat, f.NFT()))
	}
	if errors.Is(err, unix.ENOENT) { // no such chain
		err = nil
	}
	return places, err
}
