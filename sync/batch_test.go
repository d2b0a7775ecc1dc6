package sync

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
)

// foreign answers with one message at a generation.
func foreign(generation uint32, err error) ForeignMessages {
	return func(context.Context, nft.Tables) ([]nft.ForeignMessage, uint32, error) {
		return []nft.ForeignMessage{{Type: 1}}, generation, err
	}
}

func TestForeignMessages(t *testing.T) {
	refused := &kernel.ForeignError{Of: 1, Err: unix.EPERM}
	for _, tt := range []struct {
		name    string
		foreign ForeignMessages
		answers []error
		syncs   int
		want    []int // foreign messages in each batch
		fails   error // of the first sync
	}{
		{"in the first batch", foreign(7, nil), nil, 2, []int{1, 0}, nil},
		{"again after a refusal of ours", foreign(7, nil), []error{errors.New("no")}, 2, []int{1, 1}, errors.New("no")},
		{"not again after a refusal of it", foreign(7, nil), []error{refused}, 2, []int{1, 0}, refused},
		{"read at another generation", foreign(8, nil), nil, 1, nil, unix.ERESTART},
		{"cannot be read", foreign(7, unix.EPERM), nil, 1, []int{0}, nil},
		{"nothing to be asked", nil, nil, 1, []int{0}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k, f := &table{answers: tt.answers}, &feed{}
			l := New(f, services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}}), k,
				Options{Log: zap.NewNop(), Foreign: tt.foreign})
			for i := range tt.syncs {
				f.add("abc"[:i+1])
				err := l.once(t.Context())
				if i == 0 && (err == nil) != (tt.fails == nil) {
					t.Errorf("the first sync: %v, want %v", err, tt.fails)
				}
			}
			var got []int
			for _, b := range k.batches {
				got = append(got, len(b.Foreign))
			}
			if len(got) != len(tt.want) {
				t.Fatalf("%d batches, with %v, want %v", len(got), got, tt.want)
			}
			for i := range got {
				if got[i] != tt.want[i] {
					t.Errorf("messages %v, want %v", got, tt.want)
				}
			}
		})
	}
}
