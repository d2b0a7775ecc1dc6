package kernel

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/services"
)

// TestMoreErrorsThanFit sends a batch with so many errors that the receive buffer overflows:
// the first of them still names its operation.
func TestMoreErrorsThanFit(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	b := frontendBatch(1, nft.Drop)
	for i := range 50000 {
		b.Ops = append(b.Ops, nft.Op{Verb: nft.Delete, Family: nft.IP, Chain: &nft.Chain{Name: fmt.Sprintf("nowhere-%d", i)}})
	}
	checkError(t, k.Commit(t.Context(), b), unix.ENOENT,
		"table ip kube-nft: delete chain nowhere-0: no such file or directory; nothing was changed")
	checkRead(t, k, nft.Tables{})
	commit(t, k, frontendBatch(1, nft.Drop))
}

// TestLostAnswer takes the kernel's answer away before Commit looks for it.
func TestLostAnswer(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	b := frontendBatch(1, nft.Drop)
	x, err := encodeBatch(&b, scope{table: nft.TableName}, k.seq)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.socket.send(x.buf); err != nil {
		t.Fatal(err)
	}
	if _, _, err := k.socket.receive(k.buf, 0); err != nil {
		t.Fatal(err)
	}
	if err := k.outcome(x, &b); !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("got %v, want %v", err, ErrUnknownOutcome)
	}
}

// TestTooLong keeps the send buffer as small as the system makes it.
func TestTooLong(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	k.sent = 1 << 30
	err := k.Commit(t.Context(), frontendBatch(20000, nft.Drop))
	if !services.isTooLong(err) {
		t.Errorf("got %v, want %v", err, unix.EMSGSIZE)
	}
	checkRead(t, k, nft.Tables{})
}

// TestWithoutCapability drops CAP_NET_ADMIN on the test's thread, which ends with the test.
func TestWithoutCapability(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	dropNetAdmin(t)
	checkError(t, k.Commit(t.Context(), frontendBatch(1, nft.Drop)), unix.EPERM,
		"commit to nf_tables: operation not permitted (needs CAP_NET_ADMIN); nothing was changed")
	_, _, err := k.Read(t.Context())
	checkError(t, err, unix.EPERM, "read nf_tables: operation not permitted (needs CAP_NET_ADMIN)")
	_, err = k.Probe(t.Context())
	checkError(t, err, unix.EPERM, "probe nf_tables: commit to nf_tables: operation not permitted (needs CAP_NET_ADMIN); nothing was changed")
}

func dropNetAdmin(t *testing.T) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
}

// TestReadUnderChange reads while somebody else commits without a pause.
func TestReadUnderChange(t *testing.T) {
	lab.New(t)
	reader, writer := openKernel(t), openKernel(t)
	tables := sampleTables(7)
	commit(t, writer, creation(tables))
	stop, done := make(chan struct{}), make(chan error)
	go func() { done <- toggle(t, writer, stop) }()
	for range 20 {
		got, _, err := reader.Read(t.Context())
		if errors.Is(err, unix.EINTR) {
			continue // changed each time; said so
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := len(got[nft.IP].Sets["addresses"].Map); n != 0 && n != 7 {
			t.Errorf("%d elements: half of a change", n)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// toggle takes elements out and puts them back until it is told to stop.
func toggle(t *testing.T, k *Client, stop chan struct{}) error {
	all := creation(sampleTables(7))
	add := nft.Batch{}
	for _, op := range all.Ops {
		if op.Elements != nil && op.Set.Name == "addresses" {
			add.Ops = append(add.Ops, op)
		}
	}
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		b := nft.Batch{Ops: append([]nft.Op(nil), add.Ops...)}
		for j := range b.Ops {
			if i%2 == 0 {
				b.Ops[j].Verb = nft.Delete
			}
		}
		if err := k.Commit(t.Context(), b); err != nil {
			return err
		}
	}
}
