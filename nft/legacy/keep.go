package legacy

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// keptChain is a chain of the table ip kube-proxy that no packet meets. It says that the table has to stay when
// kube-proxy's state is removed.
const keptChain = "kept-by-kube-nft"

// Keep makes the table ip kube-proxy stay, with an empty chain in it, until DropKept. Where kube-proxy has the table, a
// removal of its state deletes everything else in it, in one transaction.
//
// Calico asks for this: while nftablesMode is Auto, Felix takes the nftables dataplane if table ip kube-proxy has
// chains, and restarts on another dataplane when that changes (felix/nftables/utils.go).
func Keep(ctx context.Context) error {
	t := &nfTable{family: nft.IP, rules: ruleset{table: ProxyTable}}
	if err := commit(ctx, t.kept(), 0); err != nil {
		return fmt.Errorf("keep table ip %s: %w", ProxyTable, err)
	}
	return nil
}

// DropKept deletes the table ip kube-proxy if it is there because of Keep alone. It reports whether it was.
func DropKept(ctx context.Context) (dropped bool, err error) {
	k, err := kernel.Open()
	if err != nil {
		return false, err
	}
	defer k.Close()
	t := &nfTable{family: nft.IP, rules: ruleset{table: ProxyTable}}
	generation, err := k.Generation(ctx)
	if err != nil {
		return false, err
	}
	if _, err := t.readChains(ctx, k); err != nil || !t.isKept() {
		return false, err
	}
	table := []nft.ForeignMessage{t.message(unix.NFT_MSG_DELTABLE, "", 0)}
	if err := commit(ctx, table, generation); err != nil {
		return false, fmt.Errorf("delete table ip %s: %w", ProxyTable, err)
	}
	return true, nil
}

// kept returns the messages that make the table and the chain, if they are not there.
func (t *nfTable) kept() []nft.ForeignMessage {
	return []nft.ForeignMessage{t.message(unix.NFT_MSG_NEWTABLE, "", 0), t.message(unix.NFT_MSG_NEWCHAIN, keptChain, 0)}
}

// keeps reports whether the table has to stay.
func (t *nfTable) keeps() bool {
	return slices.ContainsFunc(t.rules.chains, func(c chain) bool { return c.name == keptChain })
}

// isKept reports whether the table is there because of Keep alone.
func (t *nfTable) isKept() bool { return len(t.rules.chains) == 1 && t.keeps() }
