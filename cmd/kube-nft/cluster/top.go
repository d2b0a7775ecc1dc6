package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft/words"
)

func newTop(c *connection) *cobra.Command {
	var form output.Form
	var nodes []string
	r := &remote{inspect.NewTop()}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the busiest Services of all nodes",
		Long: `top runs kube-nft top on all Linux nodes, or on those of --node, side by side, and prints one list
for all of them, again and again: a row for each Service on each node. On a terminal each list
replaces the last one. It ends on every node when you interrupt it.

A node that has no list in time is named below the list. It exits 0, and 2 if a node did not answer.`,
		Example: `  kubectl kube-nft top
  kubectl kube-nft top --in shop --sort active --node worker-1,worker-2
  kubectl kube-nft top -o json --count 1 --interval 10s`,
		RunE: func(cmd *cobra.Command, args []string) error {
			command, err := r.command(cmd, args)
			if err != nil {
				return err
			}
			cluster, members, err := c.open(cmd, nodes)
			if err != nil {
				return err
			}
			t := topLists{form: &form, cmd: cmd, screen: output.NewScreen(cmd.OutOrStdout()),
				lists: make(chan nodeTop), ended: make(chan answer)}
			t.interval, _ = cmd.Flags().GetDuration("interval") // the flags are declared with these types
			t.count, _ = cmd.Flags().GetInt("count")
			t.rows, _ = cmd.Flags().GetInt("rows")
			t.order, _ = cmd.Flags().GetString("sort")
			return t.run(cmd.Context(), cluster, members, command)
		},
	}
	form.AddFlag(cmd, output.Table, output.JSON)
	c.addNodes(cmd, &nodes)
	r.addFlags(cmd)
	return cmd
}

// A nodeTop is a list of a node.
type nodeTop struct {
	node string
	list *inspect.Top
}

// topLists makes one list of those of all nodes.
type topLists struct {
	form     *output.Form
	cmd      *cobra.Command
	screen   *output.Screen
	interval time.Duration
	count    int
	rows     int
	order    string

	lists chan nodeTop
	ended chan answer
}

// run prints a list when each node has one, or when one and a half intervals have passed, until ctx ends, or enough
// were printed, or no node has any more.
func (t *topLists) run(ctx context.Context, c *cluster, members []member, command []string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go c.follow(ctx, members, command, func(node string, line []byte) error {
		list := new(inspect.Top)
		if err := json.Unmarshal(line, list); err != nil {
			return errNoJSON
		}
		select {
		case t.lists <- nodeTop{node, list}:
		case <-ctx.Done():
		}
		return nil
	}, func(string, string) {}, func(a answer) { t.ended <- a })
	running := make(map[string]bool)
	for _, m := range members {
		running[m.node.Name] = true
	}
	fresh := make(map[string]*inspect.Top)
	var problems []answer
	patience := t.interval * 3 / 2
	late := time.NewTimer(patience + c.timeout) // the first lists come after the connections
	defer late.Stop()
	var failed error
	for shown := 0; len(running) > 0; {
		due := false
		select {
		case l := <-t.lists:
			fresh[l.node] = l.list
		case a := <-t.ended:
			delete(running, a.Node)
			if a.Problem != "" {
				problems = append(problems, a)
			}
		case <-late.C:
			due = true
		}
		if ctx.Err() != nil {
			continue // until all commands have ended
		}
		lacks := func(node string) bool { return fresh[node] == nil }
		if len(fresh) == 0 || !due && slices.ContainsFunc(slices.Collect(maps.Keys(running)), lacks) {
			if due {
				late.Reset(patience)
			}
			continue
		}
		late.Reset(patience)
		failed = t.print(fresh, running, problems)
		clear(fresh)
		if shown++; failed != nil || shown == t.count {
			stop()
		}
	}
	if failed != nil {
		return failed
	}
	return writeProblems(t.cmd.ErrOrStderr(), problems)
}

// print prints one list of those that have come.
func (t *topLists) print(fresh map[string]*inspect.Top, running map[string]bool, problems []answer) error {
	all := inspect.MergeTops(fresh)
	rows := t.rows
	if height := t.screen.Rows(); height > 0 && !t.cmd.Flags().Changed("rows") {
		rows = max(1, height-inspect.TopHeadLines-1)
	}
	all.Finish(t.order, rows)
	if t.form.Document() {
		return t.form.WriteNext(t.cmd.OutOrStdout(), all)
	}
	var lacking []string
	for _, node := range slices.Sorted(maps.Keys(running)) {
		if fresh[node] == nil {
			lacking = append(lacking, node)
		}
	}
	for _, a := range problems {
		lacking = append(lacking, a.Node)
	}
	text := all.Text()
	if len(lacking) > 0 {
		text += fmt.Sprintf("no list from %s: %s\n", words.Plural(len(lacking), "node"), some(lacking))
	}
	return t.screen.Show(text)
}
