package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// ErrUnknownOutcome says that a batch was sent and the kernel's answer was lost: the batch may have
// been done or not. Read finds out.
var ErrUnknownOutcome = errors.New("the kernel's answer was lost, the batch may have been done or not; read the tables back")

// An OpError reports the operation for which the kernel refused a batch; it unwraps to the errno.
// It also reports an operation that cannot be encoded.
type OpError struct {
	Table       string // family and name as nft prints them: "ip kube-nft"
	Op          string // the operation in nft syntax
	Attribution string // whose the operation is: the comment of the element, or "base chains"; empty if unknown
	Set         string // name of the set, if the operation is about elements
	Key         string // the key of the very element in nft syntax, if the kernel named it
	Err         error

	Family  nft.Family // of Table
	Element string     // the key of the very element as sets hold it, if the kernel named it
}

func (e *OpError) Error() string {
	whose := ""
	if e.Attribution != "" {
		whose = " (" + e.Attribution + ")"
	}
	return fmt.Sprintf("table %s: %s%s: %v%s; nothing was changed", e.Table, e.Op, whose, e.Err, e.remedy())
}

// Unwrap returns the kernel's reason.
func (e *OpError) Unwrap() error { return e.Err }

// remedy explains EPERM. A process without the capability gets EPERM for the batch as a whole
// instead.
func (e *OpError) remedy() string {
	if errors.Is(e.Err, unix.EPERM) {
		return " (the table belongs to another program until that ends; nft list tables tells its name)"
	}
	return ""
}

// A BatchError reports that the kernel refused a batch as a whole; it unwraps to the errno.
// ERESTART means that somebody has changed nf_tables since Batch.Generation.
type BatchError struct {
	Bytes int // length of the batch
	Err   error
}

func (e *BatchError) Error() string {
	return fmt.Sprintf("commit to nf_tables: %v%s; nothing was changed", e.Err, e.remedy())
}

// Unwrap returns the kernel's reason.
func (e *BatchError) Unwrap() error { return e.Err }

// remedy explains the errors that an administrator can mend.
func (e *BatchError) remedy() string {
	switch {
	case errors.Is(e.Err, unix.ERESTART):
		return " (somebody else changed nf_tables since it was read)"
	case errors.Is(e.Err, unix.EMSGSIZE):
		return fmt.Sprintf(" (a batch of %d bytes; raise net.core.wmem_max or run with CAP_NET_ADMIN in the initial user namespace)", e.Bytes)
	}
	return accessRemedy(e.Err)
}

// accessRemedy explains why nf_tables cannot be reached.
func accessRemedy(err error) string {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return " (needs CAP_NET_ADMIN)"
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
		return " (this kernel has no nf_tables: it needs CONFIG_NF_TABLES)"
	}
	return ""
}

// A ForeignError reports that the kernel refused a foreign message, and with it the whole batch. It
// unwraps to the errno.
type ForeignError struct {
	Message int // index into Batch.Foreign
	Of      int // its length
	Err     error
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("commit to nf_tables: message %d of %d about tables of others: %v; nothing was changed", e.Message+1, e.Of, e.Err)
}

// Unwrap returns the kernel's reason.
func (e *ForeignError) Unwrap() error { return e.Err }
