package kernel

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// TestAnswerThatDoesNotCome waits for an answer that never comes. What follows does not suffer from it.
func TestAnswerThatDoesNotCome(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	_, err := k.await(time.Millisecond)
	if want := "nf_tables has not answered for 1ms: connection timed out"; err == nil || err.Error() != want ||
		!errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	r := newRuleset(0)
	commit(t, k, change.Diff(nft.Tables{}, r.Want()))
	if have, _, err := k.Read(t.Context()); err != nil || have[nft.IP] == nil {
		t.Errorf("read %d tables: %v", len(have), err)
	}
}

// TestReadingEndsWithItsContext ends a dump in the middle. The socket goes on to serve.
func TestReadingEndsWithItsContext(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	commit(t, k, nfttest.EndpointBatch(slices.Repeat([]int{10}, 500)...))
	set := &nfttest.EndpointSet
	ctx, stop := context.WithCancel(t.Context())
	messages := 0
	which := func(w *attr.Writer) {
		w.Name(unix.NFTA_SET_ELEM_LIST_TABLE, nft.TableName)
		w.Name(unix.NFTA_SET_ELEM_LIST_SET, set.Name)
	}
	err := k.Dump(ctx, unix.NFT_MSG_GETSETELEM, nft.IP, which, func(attr.Reply) {
		messages++
		stop()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("after %d messages: %v", messages, err)
	}
	if got, err := k.Elements(t.Context(), nft.IP, set); err != nil || len(got) != 5000 {
		t.Errorf("read %d elements afterwards, want 5000: %v", len(got), err)
	}
}
