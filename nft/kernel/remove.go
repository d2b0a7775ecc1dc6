package kernel

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// Detach takes the rules out of the base chains that translate destinations, in one transaction, so
// that new connections pass us by. The maps and all other chains stay for packets on their way
// through them. Detach returns the tables that had such rules.
func (k *Client) Detach(ctx context.Context) (detached []string, err error) {
	tables, generation, err := k.Read(ctx)
	if err != nil {
		return nil, err
	}
	b := nft.Batch{Generation: generation}
	for _, f := range nft.Families {
		t, before := tables[f], len(b.Ops)
		if t == nil {
			continue
		}
		for _, chain := range append(t.BaseChains("prerouting"), t.BaseChains("output")...) {
			if len(chain.Rules) > 0 {
				b.Ops = append(b.Ops, nft.Op{Verb: nft.Flush, Family: f, Chain: chain})
			}
		}
		if len(b.Ops) > before {
			detached = append(detached, "table "+f.NFT()+" "+nft.TableName)
		}
	}
	return detached, k.Commit(ctx, b)
}

// Remove deletes our tables with everything in them, in one transaction. It also deletes tables
// that an interrupted Probe has left. It returns the names of what it deleted, none if there was
// nothing. The kernel refuses (EPERM) to delete a table that another socket owns.
func (k *Client) Remove(ctx context.Context) (removed []string, err error) {
	for _, name := range []string{nft.TableName, probeTable} {
		var b nft.Batch
		families, err := k.families(ctx, name)
		if err != nil {
			return removed, fmt.Errorf("list tables: %w%s", err, accessRemedy(err))
		}
		for _, f := range families {
			b.Ops = append(b.Ops, nft.Op{Verb: nft.Delete, Family: f, Table: &nft.Table{Family: f}})
		}
		if err := k.commit(&b, wire.Scope{Table: name}); err != nil {
			return removed, err
		}
		for _, f := range families {
			removed = append(removed, "table "+f.NFT()+" "+name)
		}
	}
	return removed, nil
}

// families lists the families, of IPv4 and IPv6, that have a table of this name.
func (k *Client) families(ctx context.Context, table string) (list []nft.Family, err error) {
	return list, k.Dump(ctx, unix.NFT_MSG_GETTABLE, unix.AF_UNSPEC, About(), func(r attr.Reply) {
		f := r.Family()
		if name, _ := wire.DecodeTable(f, r.Attributes()); name == table && (f == nft.IP || f == nft.IP6) {
			list = append(list, f)
		}
	})
}
