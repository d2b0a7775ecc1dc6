package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
)

func newTrace(c *connection) *cobra.Command {
	return newEvents(c, inspect.NewTrace(), "", &cobra.Command{
		Use:   "trace [DEST]",
		Short: "Show live packets and the rules that they meet, on all nodes",
		Long: `trace runs kube-nft trace on all Linux nodes, or on those of --node, side by side, and prints the
packets of all nodes in the order of time, with the node before each line. Tracing costs the packets
that it selects some time: name a DEST or a --source. It ends on every node when you interrupt it.

It exits 0, and 2 if a node did not trace.`,
		Example: `  kubectl kube-nft trace shop/web
  kubectl kube-nft trace 192.168.0.2:30080/tcp --source 203.0.113.0/24 --node worker-1
  kubectl kube-nft trace shop/web --count 1 -o json`,
	})
}

func newFlows(c *connection) *cobra.Command {
	return newEvents(c, inspect.NewFlows(), inspect.EndedHead, &cobra.Command{
		Use:   "flows [[NAMESPACE/]SERVICE[:PORT]]",
		Short: "Show each connection to a Service when it ends, on all nodes",
		Long: `flows runs kube-nft flows on all Linux nodes, or on those of --node, side by side, and prints the
connections of all nodes in the order of time, with the node before each. A connection that passes
two nodes has an entry on both, but only the node that translated it prints it. It ends on every node
when you interrupt it.

In a pod that is not privileged, as in kube-nft's manifests, flows cannot switch the kernel's accounting
on, and prints - for bytes and durations, unless both containers have --flow-metrics.

It exits 0, and 2 if a node did not answer.`,
		Example: `  kubectl kube-nft flows shop/web
  kubectl kube-nft flows --in shop --min-duration 1m --node worker-1,worker-2 -o json`,
	})
}

// newEvents completes a command that merges the events of a command of the nodes. head is the line above them.
func newEvents(c *connection, node *cobra.Command, head string, cmd *cobra.Command) *cobra.Command {
	var form output.Form
	var nodes []string
	r := &remote{node}
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return config.Usagef("%s: expected one argument at most, got %d", cmd.Name(), len(args))
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		command, err := r.command(cmd, args)
		if err != nil {
			return err
		}
		count := 0
		if flag := cmd.Flags().Lookup("count"); flag != nil {
			count, _ = cmd.Flags().GetInt("count") // it is declared as a number
		}
		cluster, members, err := c.open(cmd, nodes)
		if err != nil {
			return err
		}
		m := &merger{form: &form, out: cmd.OutOrStdout(), head: head, count: count}
		for _, member := range members {
			m.width = max(m.width, len(member.node.Name))
		}
		ctx, stop := context.WithCancelCause(cmd.Context())
		defer stop(nil)
		go m.printLate(ctx, stop)
		var mu sync.Mutex
		var problems []answer
		warned := warnings{out: cmd.ErrOrStderr()}
		cluster.follow(ctx, members, command, m.add, warned.add, func(a answer) {
			mu.Lock()
			defer mu.Unlock()
			if a.Problem != "" { // at once: the others may go on for long
				problems = append(problems, a)
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", a.Node, a.Problem)
			}
		})
		warned.flush()
		if err := m.flush(time.Time{}); err != nil && !errors.Is(err, errEnough) {
			return err
		}
		return noAnswer(problems)
	}
	form.AddFlag(cmd, output.Text, output.JSON)
	c.addNodes(cmd, &nodes)
	r.addFlags(cmd)
	return cmd
}

const (
	// mergeDelay is how long an event waits for earlier ones of other nodes.
	mergeDelay = time.Second
	// maxWaiting bounds the events that wait, in bytes of their lines: about 100,000 connections.
	maxWaiting = 32 << 20
)

// errEnough ends a command that has printed as many events as it was asked for.
var errEnough = errors.New("as many as asked for")

// A merger prints events of many nodes in the order of their times. The clocks of nodes may differ.
type merger struct {
	form  *output.Form
	out   io.Writer
	head  string // printed once
	width int    // of the names of nodes
	count int    // of events to print; 0: all

	mu      sync.Mutex
	waiting []waitingEvent
	size    int   // of the lines of waiting
	failed  error // no more is printed
	shown   int
}

type waitingEvent struct {
	event inspect.Event
	came  time.Time
	size  int // of its line
}

// add takes in a line of a node.
func (m *merger) add(node string, line []byte) error {
	event, err := inspect.ReadEvent(line)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoJSON, err)
	}
	event.At().Node = node
	m.mu.Lock()
	m.waiting = append(m.waiting, waitingEvent{event, time.Now(), len(line)})
	m.size += len(line)
	full := m.size >= maxWaiting
	m.mu.Unlock()
	if full {
		_ = m.flush(time.Time{}) // printLate sees the error, which is not the node's
	}
	return nil
}

// printLate prints events that have waited, until ctx ends; stop ends the commands if nothing can be printed any more.
func (m *merger) printLate(ctx context.Context, stop context.CancelCauseFunc) {
	ticker := time.NewTicker(mergeDelay / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if err := m.flush(now.Add(-mergeDelay)); err != nil {
				stop(err)
				return
			}
		}
	}
}

// flush prints the events that came before a moment, and those that happened before them; a zero moment prints all.
func (m *merger) flush(before time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.SortStableFunc(m.waiting, func(a, b waitingEvent) int { return a.event.At().Time.Compare(b.event.At().Time) })
	n := len(m.waiting)
	for !before.IsZero() && n > 0 && !m.waiting[n-1].came.Before(before) {
		n--
	}
	for _, h := range m.waiting[:n] {
		m.size -= h.size
		if m.failed != nil {
			continue
		}
		m.shown++
		if m.failed = m.print(h.event); m.failed == nil && m.shown == m.count {
			m.failed = errEnough
		}
	}
	m.waiting = slices.Clone(m.waiting[n:])
	return m.failed
}

// print prints one event.
func (m *merger) print(event inspect.Event) error {
	if m.form.Document() {
		return m.form.WriteNext(m.out, event)
	}
	text := ""
	if m.shown == 1 && m.head != "" {
		text = fmt.Sprintf("%-*s  %s", max(m.width, len("NODE")), "NODE", m.head)
	}
	for line := range strings.Lines(event.Text()) {
		if line == "\n" {
			text += line
			continue
		}
		text += fmt.Sprintf("%-*s  %s", max(m.width, len("NODE")), event.At().Node, line)
	}
	_, err := io.WriteString(m.out, text)
	return err
}
