package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft/words"
)

func newDiff(c *connection) *cobra.Command {
	var form output.Form
	cmd := &cobra.Command{
		Use:   "diff [NODE]...",
		Short: "Say on which nodes the kernel differs from the API server, and which nodes differ",
		Long: `diff runs kube-nft diff on the given nodes, or on all Linux nodes. Then it compares the nodes with
each other: all must serve the same frontends, and the nodes of one zone the same endpoints for
frontends with traffic policy Cluster. Each node computes a digest of both from its kernel's
tables. Of a node whose digest is not that of most nodes, diff prints the first differences.

While Services change, nodes differ for a moment: run diff again.

It exits 0 if nothing differs, 1 if something does, and 2 if a node did not answer.`,
		Example:           "  kubectl kube-nft diff\n  kubectl kube-nft diff worker-1",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: c.nodeNames,
		RunE: func(cmd *cobra.Command, names []string) error {
			cluster, members, err := c.open(cmd, names)
			if err != nil {
				return err
			}
			rows, err := cluster.diff(cmd.Context(), members)
			if err != nil {
				return err
			}
			if form.Document() {
				err = form.Write(cmd.OutOrStdout(), output.NewList("NodeDiff", rows))
			} else {
				err = writeDiffs(cmd.OutOrStdout(), rows)
			}
			return cmp.Or(err, resultOf(rows))
		},
	}
	form.AddFlag(cmd, output.Table, output.JSON, output.YAML)
	return cmd
}

// A nodeDiff is what diff found on a node.
type nodeDiff struct {
	Node string `json:"node"`
	// Operations are those that a sync would do, as nft commands.
	Operations []string `json:"operations"`
	// Like is a node that has what most nodes have, and Differences are the rows that this node has more (+) or does not
	// have (-).
	Like        string   `json:"like,omitempty"`
	Differences []string `json:"differences,omitempty"`
	// Problem is why nothing is known.
	Problem string `json:"problem,omitempty"`
}

// resultOf is the result of the command.
func resultOf(rows []nodeDiff) error {
	var err error
	for _, r := range rows {
		if r.Problem != "" {
			return fmt.Errorf("node %s: %s", r.Node, r.Problem)
		}
		if len(r.Operations)+len(r.Differences) > 0 {
			err = inspect.ErrDiffers
		}
	}
	return err
}

// diff asks the members.
func (c *cluster) diff(ctx context.Context, members []member) ([]nodeDiff, error) {
	answers, err := c.answers(ctx, members, []string{"diff"})
	if err != nil {
		return nil, err
	}
	rows := make([]nodeDiff, len(members))
	for i, a := range answers {
		rows[i] = nodeDiff{Node: a.Node, Problem: a.Problem, Operations: []string{}}
		if text := strings.TrimSpace(a.Text); text != "" && a.Found {
			rows[i].Operations = strings.Split(text, "\n")
		}
	}
	frontends, endpoints := make([]string, len(members)), make([]string, len(members)) // what must be equal, by node
	err = c.ask(ctx, members, func(ctx context.Context, i int, pod *corev1.Pod) error {
		var status inspect.Status
		if rows[i].Problem != "" {
			return nil
		}
		if err := c.decode(ctx, pod, &status, "status", "-o", "json"); err != nil {
			rows[i].Problem = err.Error()
			return err
		}
		if d := &status.Daemon; !d.Reached { // diff took flags and defaults there, not the daemon's settings
			rows[i].Problem, rows[i].Operations = d.Health(), []string{}
			return nil
		}
		for _, t := range status.Tables {
			frontends[i] += t.Family + t.FrontendsDigest
			endpoints[i] += t.Family + t.EndpointsDigest
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = c.compare(ctx, members, rows, frontends, "services", func(*corev1.Node) string { return "" })
	if err != nil {
		return nil, err
	}
	return rows, c.compare(ctx, members, rows, endpoints, "endpoints", func(n *corev1.Node) string {
		return n.Labels[corev1.LabelTopologyZone]
	})
}

// compare finds the nodes whose digest is not that of most nodes of their group, and what they have of a kind of list
// that a node of the others has not, or the other way round.
func (c *cluster) compare(ctx context.Context, members []member, rows []nodeDiff, digests []string, list string,
	group func(*corev1.Node) string) error {
	counts := make(map[string]map[string]int)
	for i := range members {
		if rows[i].Problem == "" {
			g := group(members[i].node)
			if counts[g] == nil {
				counts[g] = make(map[string]int)
			}
			counts[g][digests[i]]++
		}
	}
	like := make(map[string]int) // in each group, the first node that has what most have
	for i := range members {
		g := group(members[i].node)
		before, known := like[g]
		if rows[i].Problem == "" && (!known || counts[g][digests[i]] > counts[g][digests[before]]) {
			like[g] = i
		}
	}
	differ := make(map[string]bool) // the nodes that differ, and those with which they are compared
	for i := range members {
		if g := group(members[i].node); rows[i].Problem == "" && rows[i].Like == "" && digests[i] != digests[like[g]] {
			rows[i].Like = members[like[g]].node.Name
			differ[rows[i].Node], differ[rows[i].Like] = true, true
		}
	}
	others := slices.DeleteFunc(slices.Clone(members), func(m member) bool { return !differ[m.node.Name] })
	held := make(map[string]map[string]bool)
	answers, err := c.answers(ctx, others, []string{"get", list, "-o", "json"})
	if err != nil {
		return err
	}
	for _, a := range answers {
		held[a.Node] = rowsOf(a.Text, list)
	}
	for i := range rows {
		r := &rows[i]
		if r.Like == "" || r.Differences != nil || held[r.Node] == nil || held[r.Like] == nil {
			continue
		}
		r.Differences = []string{} // none is left if they have become equal meanwhile
		for row := range held[r.Node] {
			if !held[r.Like][row] {
				r.Differences = append(r.Differences, "+ "+row)
			}
		}
		for row := range held[r.Like] {
			if !held[r.Node][row] {
				r.Differences = append(r.Differences, "- "+row)
			}
		}
		slices.SortFunc(r.Differences, func(a, b string) int { return strings.Compare(a[2:], b[2:]) })
	}
	return nil
}

// rowsOf returns the rows of a list that must be the same on nodes with the same digest.
func rowsOf(text, list string) map[string]bool {
	var document struct {
		Items []struct {
			Namespace, Name, Port, Frontend, Endpoint, List string
		}
	}
	if json.Unmarshal([]byte(text), &document) != nil {
		return nil
	}
	rows := make(map[string]bool)
	for _, item := range document.Items {
		row := item.Namespace + "/" + item.Name + ":" + item.Port + " at " + item.Frontend
		if list == "endpoints" {
			if item.List != "cluster" {
				continue
			}
			row += ": " + item.Endpoint
		}
		rows[row] = true
	}
	return rows
}

// shownDifferences is how many differences of a node are printed.
const shownDifferences = 10

// asWanted is the state of a node without differences.
const asWanted = "as the API server says"

// writeDiffs prints the rows for people.
func writeDiffs(w io.Writer, rows []nodeDiff) error {
	lines := [][]string{{"NODE", "TO DO", "STATE"}}
	differ, silent := 0, 0
	for _, r := range rows {
		todo, state := fmt.Sprint(len(r.Operations)), asWanted
		switch {
		case r.Problem != "":
			todo, state = "-", r.Problem
		case len(r.Operations) > 0:
			state = "differs from the API server"
		}
		if len(r.Differences) > 0 {
			state += "; differs from " + r.Like
		}
		switch {
		case r.Problem != "":
			silent++
		case state != asWanted:
			differ++
		}
		lines = append(lines, []string{r.Node, todo, state})
	}
	text := output.Align(lines)
	for _, r := range rows {
		text += someOf("\n"+r.Node+" would do:", r.Operations) +
			someOf("\n"+r.Node+" has more (+) or less (-) than "+r.Like+":", r.Differences)
	}
	text += fmt.Sprintf("\n%d of %s differ", differ, words.Plural(len(rows), "node"))
	if silent > 0 {
		text += fmt.Sprintf("; nothing is known of %d", silent)
	}
	_, err := io.WriteString(w, text+"\n")
	return err
}

// someOf is the first lines of a list below a headline; empty if there are none.
func someOf(head string, lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return head + "\n  " + words.Some(lines, shownDifferences, "\n  ") + "\n"
}
