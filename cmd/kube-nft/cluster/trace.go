package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
)

func newTrace(c *connection) *cobra.Command {
	var nodes []string
	var source string
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "trace [DEST]",
		Short: "Show live packets and the rules that they meet, on all nodes",
		Long: `trace runs kube-nft trace on all Linux nodes, or on those of --node, side by side, and prints
their lines as they come, each with its node before it. Tracing costs the packets that it selects
some time: name a DEST or a --source. It ends on every node when you interrupt it.

It exits 0, and 2 if a node did not trace.`,
		Example: `  kubectl kube-nft trace shop/web
  kubectl kube-nft trace 192.168.0.2:30080/tcp --source 203.0.113.0/24 --node worker-1`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return config.Usagef("trace: expected one DEST at most, got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := c.connect(cmd.Flags())
			if err != nil {
				return inspect.TroubleError{Err: err}
			}
			members, err := cluster.members(cmd.Context(), nodes, c.selector)
			if err != nil {
				return inspect.TroubleError{Err: err}
			}
			command := append([]string{"trace", "--until-input-ends", "--timeout", duration.String()}, args...)
			if source != "" {
				command = append(command, "--source", source)
			}
			problems := cluster.follow(cmd.Context(), members, command, cmd.OutOrStdout())
			return writeProblems(cmd.ErrOrStderr(), problems)
		},
	}
	cmd.Flags().StringSliceVar(&nodes, "node", nil, "only these nodes")
	cmd.Flags().StringVar(&source, "source", "", "client: an address or a CIDR")
	cmd.Flags().DurationVar(&duration, "duration", 5*time.Minute, "how long to trace; 0: until you interrupt it")
	return cmd
}

// follow runs a command on all members at once until ctx ends, and prints what they print. It returns those that
// could not.
func (c *cluster) follow(ctx context.Context, members []member, args []string, w io.Writer) (problems []answer) {
	var all sync.WaitGroup
	var mu sync.Mutex // of problems and w
	width := 0
	for _, m := range members {
		width = max(width, len(m.node.Name))
	}
	fail := func(m member, problem string) {
		mu.Lock()
		defer mu.Unlock()
		problems = append(problems, answer{Node: m.node.Name, Problem: problem})
	}
	for _, m := range members {
		if _, problem := m.state(); len(m.pods) == 0 || rank(m.pods[0]) > 0 {
			fail(m, problem)
			continue
		}
		all.Go(func() {
			stdin, end := io.Pipe() // the command ends when nothing can come any more
			defer end.Close()
			defer context.AfterFunc(ctx, func() { end.Close() })()
			out := &lines{head: fmt.Sprintf("%-*s  ", width, m.node.Name), mu: &mu, w: w}
			err := c.stream(ctx, m.pods[0], args, stdin, out)
			if err != nil && ctx.Err() == nil {
				fail(m, err.Error())
			}
		})
	}
	all.Wait()
	return problems
}

// lines writes whole lines with a head before each.
type lines struct {
	head string
	mu   *sync.Mutex
	w    io.Writer
	rest []byte // of a line that has not ended
}

// maxLine bounds a line.
const maxLine = 64 << 10

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	end := bytes.LastIndexByte(l.rest, '\n') + 1
	if end == 0 && len(l.rest) > maxLine {
		return 0, errors.New("a line is longer than 64 KiB")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.rest[:end]) {
		if _, err := fmt.Fprintf(l.w, "%s%s", l.head, line); err != nil {
			return 0, err
		}
	}
	l.rest = append(l.rest[:0], l.rest[end:]...)
	return len(p), nil
}
