package legacy

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// A Watch finds out, again and again, whether kube-proxy has rules for packets. A look costs about
// 0.1 ms where it has none. It is for one goroutine.
type Watch struct {
	kernel *kernel.Client
	looks  map[nft.Family]xtableLook // at the table nat of ip_tables
}

// A xtableLook is what a look has found in a table of ip_tables.
type xtableLook struct {
	info   tableInfo // it changes with the number of rules
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
	return &Watch{kernel: k, looks: map[nft.Family]xtableLook{}}, nil
}

// Close closes the Watch.
func (w *Watch) Close() error { return w.kernel.Close() }

// Look lists the places where kube-proxy has rules now, as in "legacy ip nat". It changes nothing, and
// makes the kernel load nothing. After an error it returns what it found elsewhere.
func (w *Watch) Look(ctx context.Context) (places []string, err error) {
	for _, f := range nft.Families {
		served, xtablesErr := w.xtables(ctx, f)
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
func (w *Watch) xtables(ctx context.Context, f nft.Family) (served bool, err error) {
	look := w.looks[f]
	delete(w.looks, f)
	err = eachXtable(ctx, f, []string{"nat"}, "", func(s *socket, table string) error {
		info, err := s.info(table)
		if err != nil {
			return err
		}
		if look.info != info {
			x, err := s.read(table)
			if err != nil {
				return err
			}
			look = xtableLook{info, slices.ContainsFunc(x.rules.chains, func(c blobChain) bool {
				return c.name == serviceChain && len(c.rules()) > 0
			})}
		}
		w.looks[f], served = look, look.served
		return nil
	})
	return served, err
}

// nftables lists the places in nf_tables: a table of kube-proxy's own, or iptables-nft's table nat
// with rules in the chain of Services.
func (w *Watch) nftables(ctx context.Context, f nft.Family) (places []string, err error) {
	exist, err := tableHandles(ctx, w.kernel, f)
	if err != nil {
		return nil, err
	}
	if exist[ProxyTable] != 0 {
		t := &nfTable{family: f, rules: ruleset{table: ProxyTable}}
		if _, err = t.readChains(ctx, w.kernel); !t.isKept() {
			places = append(places, fmt.Sprintf("%s %s", ProxyTables, f.NFT()))
		}
	}
	if exist["nat"] == 0 {
		return places, err
	}
	t := &nfTable{family: f, rules: ruleset{table: "nat"}}
	rules, rulesErr := t.rulesOf(ctx, w.kernel, serviceChain)
	if len(rules) > 0 {
		places = append(places, fmt.Sprintf("%s %s nat", Compat, f.NFT()))
	}
	return places, cmp.Or(err, present(rulesErr))
}
