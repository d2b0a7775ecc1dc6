package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/kube-nft/kube-nft/nft"
	"golang.org/x/sys/unix"
)

// besideOps stands for the index of an operation in what was sent for Batch.Beside.
const foreignOps = -1

// beside writes the messages that are no operations, after those that are.
func (e *encoder) foreign(messages []nft.ForeignMessage) {
	for i, m := range messages {
		at := len(e.Buf)
		b := append(e.Buf, 0, 0, 0, 0)
		b = binary.NativeEndian.AppendUint16(b, m.Type)
		b = binary.NativeEndian.AppendUint16(b, m.Flags|unix.NLM_F_REQUEST)
		b = binary.NativeEndian.AppendUint32(b, e.seq)
		b = append(b, 0, 0, 0, 0)
		e.Buf = append(b, m.Data...)
		e.CloseMessage(at)
		e.Pad()
		e.refs = append(e.refs, message{op: foreignOps, element: i, offset: at})
		e.seq++
	}
}

// A BesideError says that the kernel refused what was to be done beside our operations, and
// with it the whole batch. It unwraps to the errno.
type ForeignError struct {
	Message int // index into Batch.Beside
	Of      int // its length
	Err     error
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("commit to nf_tables: message %d of %d about tables of others: %v; nothing was changed", e.Message+1, e.Of, e.Err)
}

// Unwrap returns the kernel's reason.
func (e *ForeignError) Unwrap() error { return e.Err }
