package nft

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// A Message is one of nf_tables about a table that is not ours, ready but for its number:
// what somebody else wants done in the same transaction as a Batch.
type Message struct {
	Type, Flags uint16
	Data        []byte // a nfgenmsg and attributes
}

// besideOps stands for the index of an operation in what was sent for Batch.Beside.
const besideOps = -1

// beside writes the messages that are no operations, after those that are.
func (e *encoder) beside(messages []Message) {
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
		e.refs = append(e.refs, message{op: besideOps, element: i, offset: at})
		e.seq++
	}
}

// A BesideError says that the kernel refused what was to be done beside our operations, and
// with it the whole batch. It unwraps to the errno.
type BesideError struct {
	Message int // index into Batch.Beside
	Of      int // its length
	Err     error
}

func (e *BesideError) Error() string {
	return fmt.Sprintf("commit to nf_tables: message %d of %d about tables of others: %v; nothing was changed", e.Message+1, e.Of, e.Err)
}

// Unwrap returns the kernel's reason.
func (e *BesideError) Unwrap() error { return e.Err }
