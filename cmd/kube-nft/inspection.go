package main

import (
	"context"
	"errors"

	"github.com/kube-nft/kube-nft/nft"
)

// An inspection looks at what the kernel holds. It needs neither the daemon nor the API.
type inspection struct {
	kernel *nft.Kernel
	tables nft.Tables // with rules as statements
	// generation is the number of the latest commit to nf_tables that they contain.
	generation uint32
}

// inspect reads our tables in this network namespace. The caller closes the kernel.
func inspect(ctx context.Context) (*inspection, error) {
	kernel, err := nft.Open()
	if err != nil {
		return nil, err
	}
	i := &inspection{kernel: kernel, tables: make(nft.Tables)}
	tables, generation, err := kernel.Read(ctx)
	if err != nil {
		return nil, errors.Join(err, kernel.Close())
	}
	i.generation = generation
	for f, table := range tables {
		i.tables[f] = table.Typed()
	}
	return i, nil
}

// errNothingProgrammed: there is nothing to inspect.
var errNothingProgrammed = errors.New("this network namespace has no table kube-nft: " +
	"no kube-nft has programmed it; run this where the daemon runs, in the node's network namespace")

// inspectTables is inspect where there has to be a table.
func inspectTables(ctx context.Context) (*inspection, error) {
	i, err := inspect(ctx)
	if err != nil {
		return nil, err
	}
	if len(i.tables) == 0 {
		return nil, errors.Join(errNothingProgrammed, i.kernel.Close())
	}
	return i, nil
}

func (i *inspection) close() { i.kernel.Close() }
