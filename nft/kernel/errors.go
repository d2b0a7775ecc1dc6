package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// ErrUnknownOutcome says that a batch was sent and the kernel's answer was lost: it may
// have been done or not. Read tells.
var ErrUnknownOutcome = errors.New("the kernel's answer was lost, the batch may have been done or not; read the tables back")

// An OpError reports the operation for which the kernel refused a batch; it unwraps to the
// errno. It also reports one that there is no way to ask the kernel for.
type OpError struct {
	Table       string // family and name as nft prints them: "ip kube-nft"
	Op          string // the operation in nft syntax
	Attribution string // whose it is: the comment of the element, or "base chains"; empty if nothing tells
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

// remedy explains EPERM, which one without the capability gets for the batch as a whole.
func (e *OpError) remedy() string {
	if errors.Is(e.Err, unix.EPERM) {
		return " (the table belongs to another program until that ends; nft list tables tells its name)"
	}
	return ""
}

// A BatchError reports that the kernel refused a batch as a whole; it unwraps to the errno.
// ERESTART means that somebody changed nf_tables since Batch.Generation.
type BatchError struct {
	Bytes int // length of the batch
	Err   error
}

func (e *BatchError) Error() string {
	return fmt.Sprintf("commit to nf_tables: %v%s; nothing was changed", e.Err, e.remedy())
}

// Unwrap returns the kernel's reason.
func (e *BatchError) Unwrap() error { return e.Err }

// remedy explains the errors that the administrator can do something about.
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

// opError names the operation of a message that was refused, and the element if offset, an
// offset into the message, points at one.
func (x *encoding) opError(b *nft.Batch, index, offset int, err error) error {
	ref := x.refs[index]
	if ref.op == foreignOps {
		return &ForeignError{Message: ref.element, Of: len(b.Foreign), Err: err}
	}
	op := b.Ops[ref.op]
	e := &OpError{Table: op.Family.NFT() + " " + nft.TableName, Family: op.Family, Err: err}
	switch {
	case op.Elements != nil:
		e.Set = op.Set.Name
		if i, ok := x.elementAt(ref, offset, &op); ok {
			op.Elements = op.Elements[i : i+1]
			e.Element = op.Elements[0].Key
			e.Key = op.Set.KeyText(op.Family, op.Elements[0].Key)
		}
	case op.Rules != nil:
		op.Rules = op.Rules[ref.element : ref.element+1]
	}
	e.Op, e.Attribution = op.ShortText(), attribution(&op)
	return e
}

// opError reports an operation that cannot be encoded.
func (e *encoder) opError(op nft.Op) error {
	refused := &OpError{Table: op.Family.NFT() + " " + e.scope.table, Family: op.Family, Err: e.err}
	if op.Elements != nil {
		refused.Set = op.Set.Name
	}
	if e.bad > 0 {
		op.Elements = op.Elements[e.bad-1 : e.bad]
		refused.Element = op.Elements[0].Key
		refused.Key = op.Set.KeyText(op.Family, refused.Element)
	}
	refused.Op, refused.Attribution = op.ShortText(), attribution(&op)
	return refused
}

// attribution is on whose behalf the operation is done, as far as it shows: what the comment of
// a single element says.
func attribution(o *nft.Op) string {
	switch {
	case len(o.Elements) == 1 && o.Elements[0].Comment != "":
		return o.Elements[0].Comment
	case o.Chain != nil && o.Chain.Hook != nil:
		return "base chains"
	}
	return ""
}

// elementAt finds the element of a message that an offset into it points at, by walking over
// what was sent. An offset of zero points at none.
func (x *encoding) elementAt(ref message, offset int, op *nft.Op) (i int, ok bool) {
	const body = attr.MessageHeader + attr.NetfilterHeader
	list := attr.NewReader(attr.MessageAt(x.buf, ref.offset)[body:])
	for list.Next() {
		if list.Type == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			i, ok = itemAt(list.Value, offset-body-list.At()-attr.Header)
			i += ref.element
		}
	}
	return i, ok && i < len(op.Elements)
}

// itemAt counts the elements of a list before the one at an offset into it. The second
// element of a range belongs to the first.
func itemAt(list []byte, offset int) (i int, ok bool) {
	i = -1
	items := attr.NewReader(list)
	for offset >= 0 && items.Next() {
		if !isEndPoint(items.Value) {
			i++
		}
		if offset < items.End() {
			return i, i >= 0
		}
	}
	return 0, false
}
