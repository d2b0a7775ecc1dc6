package kernel

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/nfttest"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// TestMoreErrorsThanFit sends a batch with so many errors that the receive buffer overflows:
// the first of them still names its operation.
func TestMoreErrorsThanFit(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	b := nfttest.FrontendBatch(1, nft.Drop)
	for i := range 50000 {
		b.Ops = append(b.Ops, nft.Op{Verb: nft.Delete, Family: nft.IP, Chain: &nft.Chain{Name: fmt.Sprintf("nowhere-%d", i)}})
	}
	checkError(t, k.Commit(t.Context(), b), unix.ENOENT,
		"table ip kube-nft: delete chain nowhere-0: no such file or directory; nothing was changed")
	checkRead(t, k, nft.Tables{})
	commit(t, k, nfttest.FrontendBatch(1, nft.Drop))
}

// TestLostAnswer takes the kernel's answer away before Commit looks for it.
func TestLostAnswer(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	b := nfttest.FrontendBatch(1, nft.Drop)
	var x wire.Encoding
	if err := x.Encode(&b, wire.Ours, k.seq); err != nil {
		t.Fatal(err)
	}
	if err := k.socket.send(x.Buf); err != nil {
		t.Fatal(err)
	}
	if _, _, err := k.socket.receive(k.buf, 0); err != nil {
		t.Fatal(err)
	}
	if err := k.outcome(&x, &b); !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("got %v, want %v", err, ErrUnknownOutcome)
	}
}
