package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// ErrUnknownOutcome says that a batch was sent and the kernel's answer was lost, or that the kernel has refused the
// last phase of it: all of the batch may have been done, a part of it, or nothing. Read finds out.
var ErrUnknownOutcome = errors.New("the kernel's answer to a batch or to a part of it was lost, or it has refused " +
	"the last part; read the tables back")

// An OpError reports the operation for which the kernel refused a batch, or that cannot be encoded.
type OpError = wire.OpError

// A ForeignError reports the message about tables of others for which the kernel refused a batch.
type ForeignError = wire.ForeignError

// A BatchError reports that the kernel refused a batch as a whole; it unwraps to the errno.
// ERESTART means that another program has changed nf_tables since Batch.Generation.
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
		return " (another program changed nf_tables since it was read)"
	case errors.Is(e.Err, unix.EMSGSIZE):
		return fmt.Sprintf(" (a batch of %d bytes; raise net.core.wmem_max or run with CAP_NET_ADMIN in the initial user "+
			"namespace)", e.Bytes)
	}
	return accessRemedy(e.Err)
}

// setError says what could not be done with a set; verb may be some words.
func setError(verb string, f nft.Family, s *nft.Set, err error) error {
	return fmt.Errorf("%s %s %s %s %s: %w%s", verb, s.Noun(), f.NFT(), nft.TableName, s.Name, err, accessRemedy(err))
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
