package kernel

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// A Lock is the right to program a network namespace. At most one process has it, and only one with
// CAP_NET_ADMIN in that namespace can have it: a group of the packet log (nfnetlink_log), to which
// no rule logs. The kernel gives a group to one socket, whatever mount or process namespace its
// process is in, and takes it back when the process has ended, however it ended.
type Lock struct{ conn *netlink.Conn }

// ErrLocked says that another process has the Lock.
var ErrLocked = errors.New("another process has the lock of this network namespace")

// lockGroup is the number of the group: "kn". Programs that log packets choose theirs from 0 up.
// freeGroup is one that no program uses.
const (
	lockGroup = 0x6b6e
	freeGroup = lockGroup + 1
)

// Numbers of linux/netfilter/nfnetlink_log.h, which x/sys does not have.
const (
	logConfig     = unix.NFNL_SUBSYS_ULOG<<8 | 1 // NFULNL_MSG_CONFIG
	attrLogConfig = 1                            // NFULA_CFG_CMD
	logBind       = 1                            // NFULNL_CFG_CMD_BIND
	logUnbind     = 2                            // NFULNL_CFG_CMD_UNBIND
)

// AcquireLock acquires the Lock of the calling thread's network namespace, or returns ErrLocked. The caller
// has CAP_NET_ADMIN. Any other error says that this kernel has no such lock.
func AcquireLock() (*Lock, error) {
	conn, err := configureLog(lockGroup, logBind)
	switch {
	case err == nil:
		return &Lock{conn}, nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EBUSY):
		return nil, ErrLocked
	}
	return nil, fmt.Errorf("lock the network namespace: %w", err)
}

// Locked reports whether a process has the Lock of the calling thread's network namespace, as far as
// a caller with CAP_NET_ADMIN sees.
func Locked() bool {
	// No process can unbind the group of another one's socket: the kernel answers EPERM then. Without the
	// capability it answers EPERM about any group.
	_, err := configureLog(lockGroup, logUnbind)
	return errors.Is(err, unix.EPERM) && isFree(freeGroup)
}

// Unlocked reports whether certainly no process has the Lock of the calling thread's network
// namespace. Without CAP_NET_ADMIN, or where the kernel has no such lock, nothing is certain.
func Unlocked() bool { return isFree(lockGroup) }

// isFree reports whether no socket has a group: the kernel answers ENODEV to a process that wants to
// unbind it.
func isFree(group uint16) bool {
	_, err := configureLog(group, logUnbind)
	return errors.Is(err, unix.ENODEV)
}

// configureLog sends a command about a group from a socket of its own, which it returns if the
// command succeeds.
func configureLog(group uint16, command byte) (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	var w attr.Writer
	w.Netfilter(nft.Family(unix.AF_UNSPEC), group)
	w.Uint8(attrLogConfig, command)
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: logConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   w.Buf,
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Release gives the Lock up.
func (l *Lock) Release() error { return l.conn.Close() }
