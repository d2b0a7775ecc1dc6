package sync

import (
	"context"

	"github.com/kube-nft/kube-nft/nft"
)

// reader is what ReadAhead needs of *nft.Kernel besides what the loop does.
type reader interface {
	kernel
	Generation(context.Context) (uint32, error)
}

// A ReadAhead is a kernel whose tables were read before the loop asked for them: while the
// sources were still listing, so that a restart does not take the time of both. Make it
// with NewReadAhead; it is for one goroutine at a time, as the kernel is.
type ReadAhead struct {
	reader
	have       nft.Tables // as of generation; nil once handed out
	generation uint32
}

// NewReadAhead reads the tables of k. If that fails, the loop's own reading will say so.
func NewReadAhead(ctx context.Context, k reader) *ReadAhead {
	r := &ReadAhead{reader: k}
	if have, generation, err := k.Read(ctx); err == nil {
		r.have, r.generation = have, generation
	}
	return r
}

// Read returns what was read ahead, once, and if nobody has committed since.
func (r *ReadAhead) Read(ctx context.Context) (nft.Tables, uint32, error) {
	have := r.have
	r.have = nil
	if have != nil {
		if now, err := r.Generation(ctx); err == nil && now == r.generation {
			return have, now, nil
		}
	}
	return r.reader.Read(ctx)
}
