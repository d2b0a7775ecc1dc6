package cluster

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
)

// A remote is a command of the node that runs on many nodes, and prints documents.
type remote struct{ node *cobra.Command }

// localNames are the names of its flags here that are others: kubectl and the plug-in have flags of the same name.
var localNames = map[string]string{"namespace": "in", "timeout": "duration", "selector": "service-selector"}

// visit calls f for each flag of the node that the plug-in has as well, with its name here.
func (r *remote) visit(f func(flag *pflag.Flag, name string)) {
	r.node.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden || slices.Contains([]string{"output", "help", "watch", "sort-by"}, flag.Name) {
			return // these are the plug-in's own
		}
		f(flag, cmp.Or(localNames[flag.Name], flag.Name))
	})
}

// addFlags gives a command the flags of the node's. Both have the same values.
func (r *remote) addFlags(cmd *cobra.Command) {
	r.visit(func(flag *pflag.Flag, name string) {
		if name != flag.Name {
			other := *flag
			other.Name, other.Shorthand = name, ""
			flag = &other
		}
		cmd.Flags().AddFlag(flag)
	})
}

// command checks the command line as the node does, and returns that of the nodes.
func (r *remote) command(cmd *cobra.Command, args []string) ([]string, error) {
	if err := r.node.PreRunE(r.node, args); err != nil {
		return nil, err
	}
	list := append([]string{r.node.Name(), "--until-input-ends", "-o", "json"}, r.flags(cmd)...)
	return append(append(list, "--"), args...), nil
}

// flags returns the flags of the nodes' command line.
func (r *remote) flags(cmd *cobra.Command) (list []string) {
	r.visit(func(flag *pflag.Flag, name string) {
		if set := cmd.Flags().Lookup(name); set.Changed && name != "count" { // the plug-in counts
			value := set.Value.String()
			if several, ok := set.Value.(pflag.SliceValue); ok {
				value = strings.Join(several.GetSlice(), ",")
			}
			list = append(list, "--"+flag.Name+"="+value)
		}
	})
	return list
}

// maxLine bounds a document of a node.
const maxLine = 8 << 20

// follow runs a command that prints documents on all members at once until ctx ends, and gives each line to add, which
// may be called by several goroutines, and its warnings to warn. ended has the nodes whose command has ended, with the
// problem if there was one: a command that has not begun within the timeout is one.
func (c *cluster) follow(ctx context.Context, members []member, args []string,
	add func(node string, line []byte) error, warn func(node, text string), ended func(answer)) {
	var all sync.WaitGroup
	for _, m := range members {
		if _, problem := m.state(); !m.answers() {
			ended(answer{Node: m.node.Name, Problem: problem})
			continue
		}
		all.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stdin, end := io.Pipe() // the command ends when nothing can come any more
			defer end.Close()
			defer context.AfterFunc(ctx, func() { end.Close() })()
			out := &lines{add: func(line []byte) error { return add(m.node.Name, line) }}
			said := &lines{add: func(line []byte) error {
				if text, ok := strings.CutPrefix(string(line), "kube-nft: warning: "); ok {
					warn(m.node.Name, text)
				}
				return nil
			}}
			a := answer{Node: m.node.Name}
			if err := c.begin(ctx, m.pods[0], args, stdin, out, said); err != nil && ctx.Err() == nil {
				a.Problem = permitted(err).Error()
			}
			ended(a)
		})
	}
	all.Wait()
}

// begin is stream, but returns when ctx ends or the timeout passes while the command has not begun: a WebSocket to a
// kubelet that does not answer cannot be interrupted.
func (c *cluster) begin(ctx context.Context, pod *corev1.Pod, args []string, stdin io.Reader,
	out, said io.Writer) error {
	begun, ended := make(chan struct{}), make(chan error, 1)
	input := &firstRead{Reader: stdin, called: sync.OnceFunc(func() { close(begun) })}
	go func() { ended <- c.stream(ctx, pod, args, input, out, said) }()
	select {
	case <-begun:
		return <-ended
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(c.timeout):
		return c.late()
	}
}

// A firstRead calls a function when it is read: executors read a command's input when it has begun.
type firstRead struct {
	io.Reader
	called func()
}

// Read implements io.Reader.
func (r *firstRead) Read(p []byte) (int, error) {
	r.called()
	return r.Reader.Read(p)
}

// lines gives whole lines to add, which must not keep them.
type lines struct {
	add  func(line []byte) error
	rest []byte // of a line that has not ended
}

// Write implements io.Writer. It looks at each byte once: a node may send a long line in many small parts.
func (l *lines) Write(p []byte) (int, error) {
	for part := range bytes.Lines(p) {
		line, whole := bytes.CutSuffix(part, []byte("\n"))
		if len(l.rest)+len(line) > maxLine {
			return 0, fmt.Errorf("a document is longer than %d MiB", maxLine>>20)
		}
		l.rest = append(l.rest, line...)
		if !whole {
			break
		}
		if err := l.add(l.rest); err != nil {
			return 0, err
		}
		l.rest = l.rest[:0]
	}
	return len(p), nil
}

// warnings prints what nodes warn of, once for all nodes that say the same within a second. While they wait, they take
// as many bytes as events do at most.
type warnings struct {
	out io.Writer

	mu    sync.Mutex
	nodes map[string][]string // that have said a text, and have not been printed
	size  int                 // of nodes
}

func (w *warnings) add(node, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes == nil {
		w.nodes = make(map[string][]string)
		time.AfterFunc(mergeDelay, w.flush)
	}
	if slices.Contains(w.nodes[text], node) {
		return
	}
	if w.nodes[text] == nil {
		w.size += len(text)
	}
	w.nodes[text] = append(w.nodes[text], node)
	if w.size += len(node); w.size >= maxWaiting {
		w.print()
	}
}

// flush prints what has not been printed.
func (w *warnings) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.print()
}

// print is flush for a caller that holds the mutex.
func (w *warnings) print() {
	for _, text := range slices.Sorted(maps.Keys(w.nodes)) {
		slices.Sort(w.nodes[text])
		fmt.Fprintf(w.out, "%s: warning: %s\n", some(w.nodes[text]), text)
	}
	w.nodes, w.size = nil, 0
}
