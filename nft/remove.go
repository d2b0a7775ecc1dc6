package nft

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// Remove deletes our tables, with everything in them, in one transaction, and those that an
// interrupted Probe may have left. It returns the names of what it deleted: none, if there
// was nothing. A table that a socket of somebody else owns is refused (EPERM).
func (k *Kernel) Remove(ctx context.Context) (removed []string, err error) {
	for _, name := range []string{TableName, probeTable} {
		var b Batch
		families, err := k.families(ctx, name)
		if err != nil {
			return removed, fmt.Errorf("list tables: %w%s", err, accessRemedy(err))
		}
		for _, f := range families {
			b.Ops = append(b.Ops, Op{Verb: Delete, Family: f, Table: &Table{Family: f}})
		}
		if err := k.commit(&b, scope{table: name}); err != nil {
			return removed, err
		}
		for _, f := range families {
			removed = append(removed, "table "+f.String()+" "+name)
		}
	}
	return removed, nil
}

// families lists the families, of ours, that have a table of a name.
func (k *Kernel) families(ctx context.Context, table string) (list []Family, err error) {
	return list, k.dump(ctx, unix.NFT_MSG_GETTABLE, unix.AF_UNSPEC, func(*wire) {}, func(r reply) {
		f := r.family()
		if name, _ := decodeTable(f, r.attributes()); name == table && (f == IP || f == IP6) {
			list = append(list, f)
		}
	})
}
