package kernel

import (
	"context"
	"fmt"

	"github.com/kube-nft/kube-nft/nft"
)

// Audit compares our tables in the kernel with the wanted ones, as far as that is cheap. Every
// table, set and chain must exist, and no other. Where the kernel counts elements (Linux 6.16), the
// numbers of elements must agree. Audit returns the first difference in words, or nothing. Read and
// Diff find the rest.
func (k *Client) Audit(ctx context.Context, want nft.Tables) (difference string, err error) {
	err = k.retry(ctx, func() error {
		difference, err = k.audit(ctx, want)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("audit nf_tables: %w%s", err, accessRemedy(err))
	}
	return difference, nil
}

func (k *Client) audit(ctx context.Context, want nft.Tables) (difference string, err error) {
	have, uses, err := k.readTables(ctx)
	if err != nil {
		return "", err
	}
	for _, f := range nft.Families {
		w, h := want[f], have[f]
		switch {
		case w == nil:
			continue
		case h == nil:
			return fmt.Sprintf("table %s %s does not exist", f.NFT(), nft.TableName), nil
		case !h.Marked(w):
			return fmt.Sprintf("table %s %s has another comment or flag", f.NFT(), nft.TableName), nil
		}
		if difference, err := k.auditTable(ctx, h, w, uses[f]); err != nil || difference != "" {
			return difference, err
		}
	}
	return "", nil
}

func (k *Client) auditTable(ctx context.Context, have, want *nft.Table, use int) (difference string, err error) {
	counts, err := k.readSets(ctx, have)
	if err != nil {
		return "", err
	}
	if err := k.readChains(ctx, have, use); err != nil {
		return "", err
	}
	table := fmt.Sprintf("table %s %s", have.Family.NFT(), nft.TableName)
	if n, m := len(have.Sets), len(want.Sets); n != m {
		return fmt.Sprintf("%s has %d sets instead of %d", table, n, m), nil
	}
	if n, m := len(have.Chains), len(want.Chains); n != m {
		return fmt.Sprintf("%s has %d chains instead of %d", table, n, m), nil
	}
	for name, w := range want.Sets {
		if h := have.Sets[name]; h == nil || !h.Set.Equal(w.Set) {
			return fmt.Sprintf("%s: no set %s of the right kind", table, name), nil
		}
		if n, ok := counts[name]; ok && !w.Set.Dynamic && !w.Set.Interval && int(n) != len(w.Map) {
			return fmt.Sprintf("%s: set %s has %d elements instead of %d", table, name, n, len(w.Map)), nil
		}
	}
	for name := range want.Chains {
		if have.Chains[name] == nil {
			return fmt.Sprintf("%s: no chain %s", table, name), nil
		}
	}
	return "", nil
}
