package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// deleteBatch is how many deletions one sendmsg carries. Each may cause an error answer of less
// than 1 KiB of socket memory. All of them fit the default receive buffer of 208 KiB, so the
// answers cannot overrun it.
const deleteBatch = 128

// Delete deletes flows and returns how many it deleted. If still is not nil, only those are
// deleted that it wants to be, asked right before each of them is. A flow that has ended meanwhile is
// neither counted nor an error, and a newer one with the same addresses is left alone. If
// some could not be deleted, the others are, and the error is about the first.
func (t *Table) Delete(ctx context.Context, flows []Flow, still func(*Flow) bool) (deleted int, err error) {
	for batch := range slices.Chunk(flows, deleteBatch) {
		if ctx.Err() != nil {
			return deleted, errors.Join(err, ctx.Err())
		}
		if still != nil {
			batch = slices.DeleteFunc(slices.Clone(batch), func(flow Flow) bool { return !still(&flow) })
		}
		if len(batch) == 0 {
			continue
		}
		n, refused := t.deleteSafely(batch)
		deleted += n
		if err == nil {
			err = refused
		}
		if errors.Is(refused, unix.EPERM) {
			break
		}
	}
	return deleted, err
}

// deleteSafely deletes one batch. If the kernel drops answers because the receive buffer is full,
// it is unknown which deletions failed: deleteSafely repeats them one by one and waits for each
// answer.
func (t *Table) deleteSafely(batch []Flow) (deleted int, err error) {
	deleted, err = t.deleteBatch(batch)
	if len(batch) == 1 || !errors.Is(err, unix.ENOBUFS) {
		return deleted, err
	}
	deleted, err = len(batch), nil // the deletions that succeeded in the first pass find nothing now
	for i := range batch {
		if _, refused := t.deleteBatch(batch[i : i+1]); refused != nil {
			deleted--
			err = errors.Join(err, refused)
		}
	}
	return deleted, err
}

// deleteBatch sends one batch and reads the answers. Only the last deletion asks for an
// acknowledgement: the kernel always answers failures, and answers in order.
func (t *Table) deleteBatch(batch []Flow) (deleted int, err error) {
	conn, err := t.ready()
	if err != nil {
		return 0, err
	}
	sent := make([]netlink.Message, len(batch))
	for i := range batch {
		sent[i] = netlink.Message{
			Header: netlink.Header{Type: typeDelete, Flags: netlink.Request},
			Data:   encodeDelete(&batch[i]),
		}
	}
	sent[len(sent)-1].Header.Flags |= netlink.Acknowledge
	if sent, err = conn.SendMessages(sent); err != nil {
		return 0, fmt.Errorf("delete conntrack entries: %w", err)
	}
	deleted = len(batch)
	for {
		sequence, refused := answer(conn)
		index := int(sequence - sent[0].Header.Sequence) // they are consecutive and may wrap
		if sequence == 0 || index >= len(batch) {
			t.broken = true
			return 0, fmt.Errorf("delete conntrack entries: %w", cmp.Or(refused, errMalformed))
		}
		if refused != nil {
			deleted--
		}
		if refused != nil && !errors.Is(refused, unix.ENOENT) && err == nil {
			err = fmt.Errorf("delete conntrack entry %s: %w", batch[index].Original, refused)
		}
		if errors.Is(refused, unix.EPERM) { // refused as a whole: there is no other answer
			return 0, err
		}
		if index == len(batch)-1 {
			return deleted, err
		}
	}
}

// answer reads one answer: the sequence number of its message and the kernel's error, if any.
// Sequence 0 means that reading itself failed.
func answer(conn *netlink.Conn) (sequence uint32, err error) {
	messages, err := conn.Receive()
	var failed *netlink.OpError
	switch {
	case errors.As(err, &failed):
		return failed.Sequence, failed.Err
	case err != nil:
		return 0, err
	case len(messages) == 0:
		return 0, errMalformed
	}
	return messages[0].Header.Sequence, nil
}
