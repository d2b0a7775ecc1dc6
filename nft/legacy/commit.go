package legacy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// nfnlBatchGenID is NFNL_BATCH_GENID: begin this batch at that generation or not at all.
const nfnlBatchGenID = 1

// sendRoom is what the kernel's accounting of a batch may exceed its bytes by.
const sendRoom = 1 << 16

// receiveBuffer is what the kernel puts into one message at most. It begins each message of
// a listing by walking to where the last one ended: the fewer, the better.
const receiveBuffer = 1 << 15

// Messages returns what removes kube-proxy's state from the selected nf_tables backends,
// Compat and ProxyTables: messages of nf_tables without the batch around them, for the
// caller's own transaction, and the generation for which they hold. A transaction that is
// not bound to it may fail because an object is gone; it will not remove anything foreign,
// since handles are never used twice. No messages: there is nothing to remove.
func Messages(ctx context.Context, sel Selector) (messages []netlink.Message, generation uint32, err error) {
	c, err := dialNetfilter()
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	tables, generation, err := readNFTables(ctx, c)
	if err != nil {
		return nil, 0, fmt.Errorf("read nf_tables: %w", err)
	}
	for _, t := range tables {
		messages = append(messages, t.messages(sel)...)
	}
	return messages, generation, nil
}

// Beside is Messages for a transaction of package nft, see nft.Batch.
func Beside(ctx context.Context, sel Selector) (list []nft.Message, generation uint32, err error) {
	messages, generation, err := Messages(ctx, sel)
	for _, m := range messages {
		list = append(list, nft.Message{Type: uint16(m.Header.Type), Flags: uint16(m.Header.Flags), Data: m.Data})
	}
	return list, generation, err
}

// dialNetfilter opens a socket in the network namespace of the calling thread.
func dialNetfilter() (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: receiveBuffer})
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return c, nil
}

// messages returns what takes kube-proxy's share out of the table.
func (t *nfTable) messages(sel Selector) []netlink.Message {
	if t.backend() == ProxyTables {
		return t.removeProxy(sel)
	}
	if !sel.takesTable(Compat, t.family, t.name) {
		return nil
	}
	return t.remove(newRemoval(t.rules))
}

// removeProxy deletes a table of kube-proxy's nftables mode, which is most of all its nat
// part. If the selector allows table filter, but not nat, only what begins at filter hooks
// goes: what can refuse a packet.
func (t *nfTable) removeProxy(sel Selector) (messages []netlink.Message) {
	if sel.takesTable(ProxyTables, t.family, "nat") {
		return []netlink.Message{t.deleteTable()}
	}
	if !sel.takesTable(ProxyTables, t.family, "filter") {
		return nil
	}
	for _, c := range t.rules.chains {
		if c.base && strings.HasPrefix(c.name, "filter-") && len(c.rules) > 0 {
			messages = append(messages, t.flushChain(c.name))
		}
	}
	return messages
}

// remove deletes jumps first, then all rules of kube-proxy's chains, since these refer to
// one another, then the chains.
func (t *nfTable) remove(r removal) (messages []netlink.Message) {
	for _, j := range r.jumps {
		messages = append(messages, t.deleteRule(j.Chain, t.handles[j.Chain][j.Rule-1]))
	}
	for _, c := range t.rules.chains {
		if r.fates[c.name] != keeps && len(c.rules) > 0 {
			messages = append(messages, t.flushChain(c.name))
		}
	}
	for _, c := range t.rules.chains {
		if r.fates[c.name] == leaves {
			messages = append(messages, t.deleteChain(c.name))
		}
	}
	return messages
}

func (t *nfTable) deleteTable() netlink.Message {
	e := newEncoder()
	e.String(unix.NFTA_TABLE_NAME, t.name)
	return e.message(nfTables(unix.NFT_MSG_DELTABLE), 0, t.family)
}

func (t *nfTable) deleteChain(name string) netlink.Message {
	e := newEncoder()
	e.String(unix.NFTA_CHAIN_TABLE, t.name)
	e.String(unix.NFTA_CHAIN_NAME, name)
	return e.message(nfTables(unix.NFT_MSG_DELCHAIN), 0, t.family)
}

func (t *nfTable) deleteRule(chain string, handle uint64) netlink.Message {
	e := newEncoder()
	e.String(unix.NFTA_RULE_TABLE, t.name)
	e.String(unix.NFTA_RULE_CHAIN, chain)
	e.Uint64(unix.NFTA_RULE_HANDLE, handle)
	return e.message(nfTables(unix.NFT_MSG_DELRULE), 0, t.family)
}

// flushChain deletes all rules: what a deletion without a handle means.
func (t *nfTable) flushChain(chain string) netlink.Message {
	e := newEncoder()
	e.String(unix.NFTA_RULE_TABLE, t.name)
	e.String(unix.NFTA_RULE_CHAIN, chain)
	return e.message(nfTables(unix.NFT_MSG_DELRULE), 0, t.family)
}

// cleanNFTables removes kube-proxy's state from the selected nf_tables backends in one
// transaction; it begins again if somebody else committed since the reading.
func cleanNFTables(ctx context.Context, sel Selector) error {
	for range readAttempts {
		messages, generation, err := Messages(ctx, sel)
		if err != nil || len(messages) == 0 {
			return err
		}
		if err = Commit(ctx, messages, generation); !errors.Is(err, unix.ERESTART) {
			return err
		}
	}
	return errMoving
}

// Commit sends what Messages returned as a transaction of its own. The error unwraps to
// ERESTART if the generation has passed, and then Messages must be asked again; after any
// error nothing was changed.
func Commit(ctx context.Context, messages []netlink.Message, generation uint32) error {
	c, err := dialNetfilter()
	if err != nil {
		return err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if err := sendBatch(c, messages, generation); err != nil {
		return fmt.Errorf("remove kube-proxy's state from nf_tables: %w; nothing was changed", err)
	}
	return nil
}

// sendBatch sends a transaction and waits for its outcome.
func sendBatch(c *netlink.Conn, messages []netlink.Message, generation uint32) error {
	batch := make([]netlink.Message, 0, len(messages)+2)
	batch = append(batch, batchEdge(unix.NFNL_MSG_BATCH_BEGIN, generation))
	batch = append(batch, messages...)
	last := &batch[len(batch)-1]
	last.Header.Flags |= netlink.Acknowledge // comes when all is done; errors come unasked
	batch = append(batch, batchEdge(unix.NFNL_MSG_BATCH_END, 0))
	size := sendRoom
	for _, m := range batch {
		size += len(m.Data) + unix.NLMSG_HDRLEN
	}
	if err := c.SetWriteBuffer(size); err != nil {
		return err
	}
	if _, err := c.SendMessages(batch); err != nil {
		return err
	}
	_, err := c.Receive()
	return err
}

// batchEdge begins or ends a transaction; a generation other than zero is a condition.
func batchEdge(kind uint16, generation uint32) netlink.Message {
	e := newEncoder()
	if generation != 0 {
		e.Uint32(nfnlBatchGenID, generation)
	}
	m := e.message(kind, 0, nft.Family(unix.AF_UNSPEC))
	binary.BigEndian.PutUint16(m.Data[2:], unix.NFNL_SUBSYS_NFTABLES)
	return m
}
