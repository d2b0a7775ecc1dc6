package legacy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// Messages returns the messages that remove kube-proxy's state from the selected nf_tables
// backends, Compat and ProxyTables: foreign messages for a transaction of package nft (see
// nft.Batch). It also returns the generation for which they hold. A transaction that is not bound
// to that generation may fail because an object is gone. It never removes anything foreign, since
// the kernel never reuses handles. Without messages there is nothing to remove.
func Messages(ctx context.Context, sel Selector) (messages []nft.ForeignMessage, generation uint32, err error) {
	tables, generation, err := readNFTables(ctx, scope{})
	if err != nil {
		return nil, 0, fmt.Errorf("read nf_tables: %w", err)
	}
	for _, t := range tables {
		messages = append(messages, t.removal(sel)...)
	}
	return messages, generation, nil
}

// message returns a message of a transaction about the table, about one of its chains, or about the rules of the chain:
// about all of them, if it has no handle.
func (t *nfTable) message(command uint16, chain string, handle uint64) nft.ForeignMessage {
	m := nft.ForeignMessage{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | command, Flags: unix.NLM_F_REQUEST}
	var w attr.Writer
	w.Netfilter(t.family, 0)
	w.Name(unix.NFTA_TABLE_NAME, t.rules.table) // attribute 1 of each kind
	switch command {
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		w.Name(unix.NFTA_CHAIN_NAME, chain)
	case unix.NFT_MSG_DELRULE:
		w.Name(unix.NFTA_RULE_CHAIN, chain)
		if handle != 0 {
			w.Uint64(unix.NFTA_RULE_HANDLE, handle)
		}
	}
	if command == unix.NFT_MSG_NEWTABLE || command == unix.NFT_MSG_NEWCHAIN {
		m.Flags |= unix.NLM_F_CREATE
	}
	m.Data = w.Buf
	return m
}

// removal returns the messages that remove kube-proxy's share from the table: jumps first, then all
// rules of kube-proxy's chains, since these refer to one another, then the chains.
func (t *nfTable) removal(sel Selector) (messages []nft.ForeignMessage) {
	if t.backend() == ProxyTables {
		return t.proxyRemoval(sel)
	}
	if !sel.allowsTable(Compat, t.family, t.rules.table) {
		return nil
	}
	gone := newRemoval(t.rules)
	for _, j := range gone.jumps {
		messages = append(messages, t.message(unix.NFT_MSG_DELRULE, j.Chain, t.handles[j.Chain][j.Rule-1]))
	}
	for _, c := range t.rules.chains {
		if gone.actions[c.name] != keepChain && len(c.rules) > 0 {
			messages = append(messages, t.message(unix.NFT_MSG_DELRULE, c.name, 0))
		}
	}
	for _, c := range t.rules.chains {
		if gone.actions[c.name] == deleteChain {
			messages = append(messages, t.message(unix.NFT_MSG_DELCHAIN, c.name, 0))
		}
	}
	return messages
}

// proxyRemoval deletes a table of kube-proxy's nftables mode, or all that Keep does not keep of it; most of it is
// its nat part. If the selector allows table filter but not nat, only the chains at filter hooks go, which can refuse
// a packet.
func (t *nfTable) proxyRemoval(sel Selector) (messages []nft.ForeignMessage) {
	if sel.allowsTable(ProxyTables, t.family, "nat") {
		messages = append(messages, t.message(unix.NFT_MSG_DELTABLE, "", 0))
		if t.keeps() {
			messages = append(messages, t.kept()...)
		}
		return messages
	}
	if !sel.allowsTable(ProxyTables, t.family, "filter") {
		return nil
	}
	for _, c := range t.rules.chains {
		if c.base && strings.HasPrefix(c.name, "filter-") && len(c.rules) > 0 {
			messages = append(messages, t.message(unix.NFT_MSG_DELRULE, c.name, 0))
		}
	}
	return messages
}

// removeNFTables removes kube-proxy's state from the selected nf_tables backends in one
// transaction. It starts again if another program has committed since the reading.
func removeNFTables(ctx context.Context, sel Selector) error {
	for range readAttempts {
		messages, generation, err := Messages(ctx, sel)
		if err != nil || len(messages) == 0 {
			return err
		}
		switch err = commit(ctx, messages, generation); {
		case err == nil:
			return nil
		case !errors.Is(err, unix.ERESTART):
			return fmt.Errorf("remove kube-proxy's state from nf_tables: %w", err)
		}
	}
	return errMoving
}

// commit sends the messages as a transaction of its own. If the generation has passed, the error
// unwraps to ERESTART; call Messages again.
func commit(ctx context.Context, messages []nft.ForeignMessage, generation uint32) error {
	k, err := kernel.Open()
	if err != nil {
		return err
	}
	defer k.Close()
	return k.Commit(ctx, nft.Batch{Foreign: messages, Generation: generation})
}
