package sync

import (
	"context"
	"errors"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// Beside returns what is to happen to tables of others in the transaction of the first
// batch, and the generation of nf_tables for which that holds.
type Beside func(context.Context) (messages []nft.Message, generation uint32, err error)

// Once syncs one time, for a caller that does not go on with Run.
func (l *Loop) Once(ctx context.Context) error {
	l.takeAddresses()
	return l.sync(ctx)
}

// addBeside completes the first batch, which is read and written at one generation. Our own
// part of it does not wait for what fails here.
func (l *Loop) addBeside(ctx context.Context, batch *nft.Batch) error {
	if l.beside == nil {
		return nil
	}
	messages, generation, err := l.beside(ctx)
	switch {
	case err != nil:
		l.forgo(err)
	case generation != batch.Generation:
		return unix.ERESTART // somebody committed since the tables were read
	default:
		batch.Beside = messages
	}
	return nil
}

// besideDone looks at the outcome of a commit: what was done is not to be done again, and
// what the kernel refuses must not keep our own batches out.
func (l *Loop) besideDone(err error) {
	var refused *nft.BesideError
	switch {
	case err == nil:
		l.beside = nil
	case errors.As(err, &refused):
		l.forgo(err)
	}
}

func (l *Loop) forgo(err error) {
	l.beside = nil
	l.options.Log.Warn("the first commit will leave tables of others as they are", zap.Error(err))
}
