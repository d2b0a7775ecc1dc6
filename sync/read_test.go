package sync

import (
	"context"
	"errors"
	"testing"

	"github.com/kube-nft/kube-nft/nft"
)

// A generational table counts its reads and has a generation.
type generational struct {
	table
	now uint32
	err error
}

func (k *generational) Read(ctx context.Context) (nft.Tables, uint32, error) {
	if k.err != nil {
		return nil, 0, k.err
	}
	tables, _, err := k.table.Read(ctx)
	return tables, k.now, err
}

func (k *generational) Generation(context.Context) (uint32, error) { return k.now, k.err }

func TestReadEarly(t *testing.T) {
	lost := errors.New("lost")
	for _, tt := range []struct {
		name   string
		before func(*generational) // the early read
		after  func(*generational)
		reads  int // of the kernel, up to the end of the loop's first
		err    error
	}{
		{name: "nothing happened meanwhile", reads: 1},
		{name: "somebody committed", after: func(k *generational) { k.now++ }, reads: 2},
		{name: "the early read failed", before: func(k *generational) { k.err = lost }, after: func(k *generational) { k.err = nil }, reads: 1},
		{name: "the kernel does not answer", after: func(k *generational) { k.err = lost }, reads: 1, err: lost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := &generational{now: 7}
			if tt.before != nil {
				tt.before(k)
			}
			ahead := ReadEarly(t.Context(), k)
			if tt.after != nil {
				tt.after(k)
			}
			_, generation, err := ahead.Read(t.Context())
			if k.reads != tt.reads || !errors.Is(err, tt.err) {
				t.Errorf("%d reads, %v; want %d, %v", k.reads, err, tt.reads, tt.err)
			}
			if err == nil && generation != k.now {
				t.Errorf("generation %d, want %d", generation, k.now)
			}
			if _, _, err := ahead.Read(t.Context()); err == nil && k.reads != tt.reads+1 {
				t.Errorf("what was read ahead came twice")
			}
		})
	}
}
