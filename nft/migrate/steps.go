package migrate

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// An Entry of a migration's journal says that a step begins, what it waits for, or what it has done. A step that fails
// has no further entry: its error ends the command, which prints it.
type Entry struct {
	Step  string
	Event Event
	Text  string // what was done, or what it waits for; empty when a step begins
}

// An Event is what an Entry is about.
type Event string

// The events.
const (
	Begins Event = "begins"
	Waits  Event = "waits"
	Done   Event = "done"
)

// String returns the entry as a line for an operator.
func (e Entry) String() string {
	switch {
	case e.Event == Waits:
		return fmt.Sprintf("kube-proxy runs, %s; nothing is done before it has ended: stop it on this node, its rules stay",
			e.Text)
	case e.Text == "":
		return fmt.Sprintf("%s: %s", e.Step, e.Event)
	}
	return fmt.Sprintf("%s: %s: %s", e.Step, e.Event, e.Text)
}

// WriteJournal returns a function that writes entries as lines, one each: an entry may hold names that
// others chose.
func WriteJournal(w io.Writer) func(Entry) {
	return func(e Entry) {
		fmt.Fprintln(w, "kube-nft: "+nft.Visible(strings.ReplaceAll(e.String(), "\n", "; ")))
	}
}

// A step is one change that happens as a whole or not at all.
type step struct {
	name string
	do   func(context.Context) (done string, err error)
}

// perform does steps in order, with a journal. Its error names the step.
func perform(ctx context.Context, journal func(Entry), steps []step) error {
	for _, s := range steps {
		journal(Entry{Step: s.name, Event: Begins})
		done, err := s.do(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		journal(Entry{Step: s.name, Event: Done, Text: done})
	}
	return nil
}

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL of linux/membarrier.h. The kernel returns from it when
// everything has ended that ran under its read lock (synchronize_rcu), which includes every packet
// between two hooks of netfilter.
const membarrierGlobal = 1

// packetPause is the pause where the kernel lacks membarrier.
const packetPause = 100 * time.Millisecond

// waitForPackets waits until every packet under way has seen the new rules.
func waitForPackets(ctx context.Context) (string, error) {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno == 0 {
		return "no packet is between two hooks any more", nil
	}
	if !retry.Pause(ctx, packetPause) {
		return "", context.Cause(ctx)
	}
	return "waited for " + packetPause.String(), nil
}
