package wire

import (
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// An encoder writes a Batch as netlink messages, one after the other in one buffer.
//
// The batch asks for no echo and for one acknowledgement only, of its last operation. The kernel
// works on a batch while it is being sent and queues every error before that acknowledgement. So an
// acknowledgement without errors means that all of the batch was done.
type encoder struct {
	attr.Writer
	scope  Scope
	family nft.Family
	seq    uint32    // of the next message
	refs   []message // in sequence, without begin and end
	setID  uint32    // the kernel wants an id, unique in the batch, for each new set
	err    error     // the first
	bad    int       // the element that err is about, or noElement
}

// A message says where in the batch a netlink message comes from.
type message struct {
	op      int // index into Batch.Ops
	element int // index of the message's first element or rule
	offset  int // where the message begins in the buffer
}

// An Encoding is a batch as it is sent. Its memory serves for the next batch.
type Encoding struct {
	// Buf holds the messages: the begin of the batch, its operations, the end.
	Buf   []byte
	first uint32 // sequence number of the begin message; later messages count up
	refs  []message
}

// Messages is the number of messages between the begin and the end of the batch.
func (x *Encoding) Messages() int { return len(x.refs) }

// Message returns one of these messages.
func (x *Encoding) Message(i int) []byte { return attr.MessageAt(x.Buf, x.refs[i].offset) }

// Index returns the index of the message with a sequence number: -1 for the begin of the batch, Messages for its end.
// ok is false for a message of another batch.
func (x *Encoding) Index(seq uint32) (i int, ok bool) {
	i = int(int32(seq-x.first)) - 1
	return i, i >= -1 && i <= len(x.refs)
}

// A Scope is the table that a batch is about: ours, or one that a probe makes up.
type Scope struct {
	Table string
	Flags uint32 // NFTA_TABLE_FLAGS
}

// Ours is the Scope of our tables.
var Ours = Scope{Table: nft.TableName}

// Encode encodes the batch and numbers its messages from first on. It returns an *OpError for an operation that
// cannot be encoded.
func (x *Encoding) Encode(b *nft.Batch, s Scope, first uint32) error {
	e := encoder{scope: s, seq: first, bad: noElement}
	size, messages := batchSize(b)
	e.Buf, e.refs = slices.Grow(x.Buf[:0], size), slices.Grow(x.refs[:0], messages)
	begin := e.envelope(unix.NFNL_MSG_BATCH_BEGIN)
	if b.Generation != 0 { // the kernel checks it before anything else
		e.Uint32(unix.NFNL_BATCH_GENID, b.Generation)
		e.CloseMessage(begin)
	}
	for i := range b.Ops {
		e.family = b.Ops[i].Family
		if err := e.op(i, &b.Ops[i]); err != nil {
			return err
		}
	}
	if len(b.Foreign) > 0 {
		e.foreign(b.Foreign)
	}
	if last := len(e.refs) - 1; last >= 0 {
		flags := e.Buf[e.refs[last].offset+6:]
		flags[0] |= unix.NLM_F_ACK
	}
	if !b.Check { // without an end the kernel takes the batch back
		e.envelope(unix.NFNL_MSG_BATCH_END)
	}
	x.Buf, x.first, x.refs = e.Buf, first, e.refs
	return nil
}

// How much of an Encoding is kept for the next one, in bytes: of a usual one, and of one that
// others of its kind are likely to follow, since it may be a part of a batch.
const (
	maxSpareBatch = 64 << 10
	maxSparePart  = 8 << 20
)

// Trim gives up the memory of an Encoding that was unusually long. The memory of a part is kept
// until a usual batch follows, because the next part needs it.
func (x *Encoding) Trim() {
	if cap(x.Buf) > maxSparePart || cap(x.Buf) > maxSpareBatch && len(x.Buf) <= maxSpareBatch {
		*x = Encoding{}
	}
}

// envelope writes the begin or the end of the batch.
func (e *encoder) envelope(typ uint16) (at int) {
	at = e.OpenMessage(typ, unix.NLM_F_REQUEST, e.seq, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	e.CloseMessage(at)
	e.seq++
	return at
}

// message writes one message of operation op. element is the index of its first element.
func (e *encoder) message(op, element int, typ, flags uint16, body func()) {
	at := e.OpenMessage(MessageType|typ, flags, e.seq, e.family, 0)
	e.refs = append(e.refs, message{op: op, element: element, offset: at})
	e.seq++
	e.Name(1, e.scope.Table) // NFTA_TABLE_NAME, NFTA_SET_TABLE and so on are all 1
	body()
	e.CloseMessage(at)
}

// op writes the messages of operation i.
func (e *encoder) op(i int, op *nft.Op) error {
	switch {
	case op.Elements != nil:
		e.elements(i, op)
	case op.Rules != nil:
		e.rules(i, op)
	case op.Set != nil:
		e.set(i, op)
	case op.Chain != nil:
		e.chain(i, op)
	case op.Table != nil:
		e.tableOp(i, op)
	default:
		return fmt.Errorf("operation %d of the batch has no object", i)
	}
	if e.err != nil {
		return newOpError(e.scope.Table, *op, e.bad, e.err)
	}
	return nil
}

func (e *encoder) tableOp(i int, op *nft.Op) {
	if op.Verb == nft.Delete {
		e.message(i, 0, unix.NFT_MSG_DELTABLE, unix.NLM_F_REQUEST, func() {})
		return
	}
	e.message(i, 0, unix.NFT_MSG_NEWTABLE, flagsCreate, func() {
		flags := e.scope.Flags
		if op.Table.Owned {
			flags |= TableOwner | TablePersist
		}
		e.Uint32(unix.NFTA_TABLE_FLAGS, flags)
		if op.Table.Comment != "" {
			e.Bytes(attrTableUserdata, commentUserdata(op.Table.Comment))
		}
	})
}

// chain writes a chain, its removal, or the removal of all its rules.
func (e *encoder) chain(i int, op *nft.Op) {
	switch op.Verb {
	case nft.Delete:
		e.message(i, 0, unix.NFT_MSG_DELCHAIN, unix.NLM_F_REQUEST, func() { e.Name(unix.NFTA_CHAIN_NAME, op.Chain.Name) })
	case nft.Flush:
		e.message(i, 0, unix.NFT_MSG_DELRULE, unix.NLM_F_REQUEST, func() { e.Name(unix.NFTA_RULE_CHAIN, op.Chain.Name) })
	default:
		e.message(i, 0, unix.NFT_MSG_NEWCHAIN, flagsCreate, func() {
			e.Name(unix.NFTA_CHAIN_NAME, op.Chain.Name)
			if op.Chain.Hook != nil {
				e.hook(op.Chain.Hook)
			}
		})
	}
}

func (e *encoder) hook(h *nft.Hook) {
	number, ok := hookNumbers[h.Point]
	if !ok {
		e.fail(fmt.Errorf("unknown hook %q", h.Point))
	}
	at := e.Open(unix.NFTA_CHAIN_HOOK)
	e.Uint32(unix.NFTA_HOOK_HOOKNUM, number)
	e.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))
	e.Close(at)
	e.Uint32(unix.NFTA_CHAIN_POLICY, uint32(expr.VerdictAccept))
	e.Name(unix.NFTA_CHAIN_TYPE, h.Type)
}

// rules appends rules to a chain, each in a message of its own.
func (e *encoder) rules(i int, op *nft.Op) {
	for j, rule := range op.Rules {
		e.message(i, j, unix.NFT_MSG_NEWRULE, flagsCreateAndQueue, func() {
			e.Name(unix.NFTA_RULE_CHAIN, op.Chain.Name)
			at := e.Open(unix.NFTA_RULE_EXPRESSIONS)
			e.fail(rule.AppendTo(&e.Writer, e.family))
			e.Close(at)
		})
	}
}

func (e *encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

// elementHeaders is an upper estimate of what an element takes beside its key, data, chain and comment: their headers
// and padding.
const elementHeaders = 56

// batchSize estimates the encoded length of the batch, and the number of its messages.
// With it, the buffer hardly grows while they are written.
func batchSize(b *nft.Batch) (size, messages int) {
	size = 128
	for i := range b.Ops {
		op := &b.Ops[i]
		messages += max(1, len(op.Rules))
		if op.Set != nil && op.Elements == nil {
			size += 512
		}
		size += 128 // a chain, or the head of elements
		for _, rule := range op.Rules {
			size += 64 + 160*len(rule)
		}
		elements := 0
		for j := range op.Elements {
			el := &op.Elements[j]
			elements += elementHeaders + len(el.Key) + len(el.Data) + len(el.Comment)
			if el.Verdict != nil {
				elements += len(el.Verdict.Chain)
			}
			if el.Life != nil {
				elements += 24
			}
		}
		size, messages = size+elements, messages+elements/maxList
	}
	for i := range b.Foreign {
		size, messages = size+attr.MessageHeader+len(b.Foreign[i].Data), messages+1
	}
	return size, messages
}

// attribution says for whom the operation is done: the comment of a single element, or "base
// chains"; empty if unknown.
func attribution(o *nft.Op) string {
	switch {
	case len(o.Elements) == 1 && o.Elements[0].Comment != "":
		return o.Elements[0].Comment
	case o.Chain != nil && o.Chain.Hook != nil:
		return "base chains"
	}
	return ""
}

// foreignOps stands for the index of an operation in messages of Batch.Foreign.
const foreignOps = -1

// foreign writes the messages of Batch.Foreign, after our operations.
func (e *encoder) foreign(messages []nft.ForeignMessage) {
	for i, m := range messages {
		at := e.OpenMessage(m.Type, m.Flags|unix.NLM_F_REQUEST, e.seq, unix.AF_UNSPEC, 0)
		e.Buf = append(e.Buf[:at+attr.MessageHeader], m.Data...) // which has a header of netfilter of its own
		e.CloseMessage(at)
		e.Pad()
		e.refs = append(e.refs, message{op: foreignOps, element: i, offset: at})
		e.seq++
	}
}
