package kernel_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// TestProofInKernel: a proof is for one role, and nobody gives it without CAP_NET_ADMIN in the
// namespace of whoever wants it.
func TestProofInKernel(t *testing.T) {
	lab.New(t)
	elsewhere := lab.Open(t, lab.NewNamespace)
	ours := lab.Open(t, kernel.NewProof)
	var theirs *kernel.Proof
	if err := elsewhere.Do(func() (err error) { theirs, err = kernel.NewProof(); return err }); err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if err := kernel.Prove(received(t, ours), kernel.Requester); err != nil || !ours.Given(kernel.Requester) || ours.Given(kernel.Programmer) {
		t.Errorf("%v, given %t, for the other role %t", err, ours.Given(kernel.Requester), ours.Given(kernel.Programmer))
	}
	for _, protocol := range []int{unix.NETLINK_NETFILTER, unix.NETLINK_ROUTE} {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			t.Fatal(err)
		}
		if err := kernel.Prove(os.NewFile(uintptr(fd), ""), kernel.Requester); err == nil {
			t.Errorf("a socket of protocol %d passes for one of a proof", protocol)
		}
	}
	// This thread, which ends with the test, gives up one capability.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var capabilities [2]unix.CapUserData
	if err := unix.Capget(&header, &capabilities[0]); err != nil {
		t.Fatal(err)
	}
	capabilities[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&header, &capabilities[0]); err != nil {
		t.Fatal(err)
	}
	for name, proof := range map[string]*kernel.Proof{"ours": lab.Open(t, kernel.NewProof), "theirs": theirs} {
		if err := kernel.Prove(received(t, proof), kernel.Requester); !errors.Is(err, unix.EPERM) || proof.Given(kernel.Requester) {
			t.Errorf("%s, without the capability: %v, given %t", name, err, proof.Given(kernel.Requester))
		}
	}
}

// received returns the socket of a proof as another process gets it.
func received(t *testing.T, p *kernel.Proof) *os.File {
	t.Helper()
	messages, err := unix.ParseSocketControlMessage(p.Rights())
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "")
}
