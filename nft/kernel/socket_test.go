package kernel

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// TestSocketWaits asks for nothing, and then for the generation while a goroutine waits for it.
func TestSocketWaits(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	for _, patience := range []time.Duration{0, time.Millisecond} {
		if _, _, err := k.socket.receive(k.buf, patience); err != unix.EAGAIN {
			t.Errorf("nothing to receive for %v: %v, want EAGAIN", patience, err)
		}
	}
	answered := make(chan error)
	go func() {
		_, _, err := k.socket.receive(k.buf, time.Minute)
		answered <- err
	}()
	var w attr.Writer
	at := w.OpenMessage(wire.MessageType|unix.NFT_MSG_GETGEN, unix.NLM_F_REQUEST, 1, nft.IP, 0)
	w.CloseMessage(at)
	if err := k.socket.send(w.Buf); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// TestSocketClosedTwice lets another socket get the descriptor in between.
func TestSocketClosedTwice(t *testing.T) {
	s, err := openSocket()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	other, err := openSocket()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.close(); !errors.Is(err, unix.EBADF) {
		t.Errorf("closed again: %v, want EBADF", err)
	}
	if err := s.send(nil); err != unix.EBADF {
		t.Errorf("sent after it was closed: %v, want EBADF", err)
	}
	if err := other.close(); err != nil {
		t.Errorf("the other socket: %v", err)
	}
}
