package kernel

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// A Proof is how another process shows that it has CAP_NET_ADMIN in the network namespace of the
// thread that made the Proof. Its user says too little, because anybody's container may run as root.
// Its number says nothing if it is in another container.
//
// A Proof is a new netlink socket, which the other process gets. The kernel lets only that capability
// subscribe it to a group. The protocol is that of messages among processes: no other privilege comes
// with such a socket, and the kernel sends nothing there.
type Proof struct{ socket *os.File }

// A Role is what a process proves its right to. Each Role has a group of its own, so that nobody
// can answer one process with the proof that another gave for something else.
type Role uint32

// The roles.
const (
	Requester  Role = 27 // asks the kube-nft that programs the namespace for something
	Programmer Role = 28 // is that kube-nft
)

// NewProof returns a Proof that nobody has given yet.
func NewProof() (*Proof, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return &Proof{os.NewFile(uintptr(fd), "proof")}, nil
}

// Rights is the control message that carries the socket to the other process. The Proof has to stay
// open until it is sent.
func (p *Proof) Rights() []byte { return unix.UnixRights(int(p.socket.Fd())) }

// Given reports whether a process with the capability has proved its right to a role.
func (p *Proof) Given(role Role) bool {
	groups, err := unix.GetsockoptInt(int(p.socket.Fd()), unix.SOL_NETLINK, unix.NETLINK_LIST_MEMBERSHIPS)
	return err == nil && groups&(1<<(role-1)) != 0
}

// Close closes the socket here.
func (p *Proof) Close() error { return p.socket.Close() }

// Prove gives the proof for which another process has sent a socket, and closes the socket.
func Prove(socket *os.File, role Role) error {
	defer socket.Close()
	fd := int(socket.Fd())
	for option, want := range map[int]int{unix.SO_DOMAIN: unix.AF_NETLINK, unix.SO_PROTOCOL: unix.NETLINK_USERSOCK} {
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); err != nil || got != want {
			return errors.New("a request for a proof with something else than a socket for it")
		}
	}
	return unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(role))
}
