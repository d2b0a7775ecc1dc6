package inspect

import (
	"context"
	"errors"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/readback"
)

// An inspection looks at the kernel's tables. It needs neither the daemon nor the API.
type inspection struct {
	kernel *kernel.Client
	tables map[nft.Family]*readback.Table
	// generation is the number of the latest commit to nf_tables that the tables contain.
	generation uint32
}

// look reads our tables in this network namespace. The caller closes the kernel.
func look(ctx context.Context) (*inspection, error) {
	kernel, err := kernel.Open()
	if err != nil {
		return nil, err
	}
	i := &inspection{kernel: kernel}
	if err := i.read(ctx); err != nil {
		return nil, errors.Join(err, kernel.Close())
	}
	return i, nil
}

// read reads our tables, again if they have been read before.
func (i *inspection) read(ctx context.Context) error {
	tables, generation, err := i.kernel.Read(ctx)
	if err != nil {
		return err
	}
	i.tables, i.generation = make(map[nft.Family]*readback.Table, len(tables)), generation
	for f, table := range tables {
		i.tables[f] = readback.New(table)
	}
	return nil
}

// readIfChanged reads our tables again if another program has committed since.
func (i *inspection) readIfChanged(ctx context.Context) (changed bool, err error) {
	generation, err := i.kernel.Generation(ctx)
	if err != nil || generation == i.generation {
		return false, err
	}
	return true, i.read(ctx)
}

// lookAtTables is look, and fails if there is no table.
func lookAtTables(ctx context.Context) (*inspection, error) {
	i, err := look(ctx)
	if err == nil && len(i.tables) == 0 {
		err = errors.Join(errors.New("this network namespace has no table kube-nft: "+
			"no kube-nft has programmed it; run this where the daemon runs, in the node's network namespace"), i.kernel.Close())
	}
	return i, err
}

func (i *inspection) close() { i.kernel.Close() }

// familyDigit and familyName spell the family as users write it and as the Kubernetes API does.
func familyDigit(f nft.Family) string {
	if f == nft.IP6 {
		return "6"
	}
	return "4"
}

func familyName(f nft.Family) string { return "IPv" + familyDigit(f) }
