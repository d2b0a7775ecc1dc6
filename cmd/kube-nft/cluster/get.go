package cluster

import (
	"cmp"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/tracker"
)

func newGet(c *connection) *cobra.Command {
	var form output.Form
	var nodes []string
	var sortBy string
	r := &remote{inspect.NewGet(nil)}
	cmd := &cobra.Command{
		Use:   "get services|endpoints|affinity [NAME|NAMESPACE/NAME[:PORT]]",
		Short: "List Services, endpoints or affinity entries of all nodes",
		Long: `get runs kube-nft get on all Linux nodes, or on those of --node, and prints what they have in
their kernels, with the node in the first column. -n and -l are about the pods of kube-nft and the nodes:
--in has the namespace of the Services, --service-selector their labels.

It exits 0, and 2 if a node did not answer or does not have NAME.`,
		Example: `  kubectl kube-nft get services shop/web
  kubectl kube-nft get endpoints shop/web --node worker-1,worker-2
  kubectl kube-nft get services --in shop --service-selector app=web --sort-by ep
  kubectl kube-nft get affinity shop/game -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 2 {
				return config.Usagef("get: expected services, endpoints or affinity, and a name at most")
			}
			return nil
		},
		ValidArgs: []string{"services", "endpoints", "affinity"},
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, members, err := c.open(cmd, nodes)
			if err != nil {
				return err
			}
			command := []string{"get", "-o", form.Value}
			if form.Document() {
				command[2] = output.JSON
			}
			if form.Document() && sortBy != "" && sortBy != nodeColumn { // the rows of a node stay together
				command = append(command, "--sort-by", sortBy)
			}
			answers, err := cluster.answers(cmd.Context(), members, slices.Concat(command, r.flags(cmd), args))
			if err != nil {
				return err
			}
			if form.Document() {
				documents := make([]nodeDocument, len(answers))
				for i := range answers {
					a := &answers[i]
					if a.Problem == "" && !json.Valid([]byte(a.Text)) {
						a.Problem, a.Text = errNoJSON.Error(), ""
					}
					documents[i] = nodeDocument{Node: a.Node, Problem: a.Problem, Document: json.RawMessage(a.Text)}
				}
				err = form.Write(cmd.OutOrStdout(), output.NewList("NodeDocument", documents))
			} else {
				err = writeTables(cmd.OutOrStdout(), answers, sortBy)
			}
			return cmp.Or(err, writeProblems(cmd.ErrOrStderr(), withProblems(answers)))
		},
	}
	form.AddFlag(cmd, output.Table, output.Wide, output.JSON, output.YAML)
	c.addNodes(cmd, &nodes)
	r.addFlags(cmd)
	cmd.Flags().StringVar(&sortBy, "sort-by", "", "sort by the column with this head; by node without it")
	output.OfferFrom(cmd, "sort-by", func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return append([]string{nodeColumn}, inspect.Columns(args[0])...), cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// nodeColumn is the column that the plug-in adds.
const nodeColumn = "node"

// A nodeDocument is what a command printed for programs on a node.
type nodeDocument struct {
	Node     string          `json:"node"`
	Problem  string          `json:"problem,omitempty"`
	Document json.RawMessage `json:"document,omitempty"`
}

// gap is between two cells of a table: no cell is empty, or has two spaces.
var gap = regexp.MustCompile(` {2,}`)

// writeTables prints the tables of all nodes as one, with the node in the first column, sorted by the column with a
// head if there is one. A table need not have all columns.
func writeTables(w io.Writer, answers []answer, sortBy string) error {
	heads := []string{"NODE"}
	var rows []map[string]string // cells by head
	for _, a := range answers {
		if a.Problem != "" || a.Text == "" {
			continue
		}
		lines := strings.Split(strings.TrimRight(a.Text, "\n"), "\n")
		columns := gap.Split(lines[0], -1)
		for _, head := range columns {
			if !slices.Contains(heads, head) {
				heads = append(heads, head)
			}
		}
		for _, line := range lines[1:] {
			row := map[string]string{"NODE": a.Node}
			for i, cell := range gap.Split(line, len(columns)) {
				row[columns[i]] = cell
			}
			rows = append(rows, row)
		}
	}
	if len(heads) == 1 { // no node has a table
		return nil
	}
	if sortBy != "" {
		at := slices.IndexFunc(heads, func(head string) bool { return strings.EqualFold(head, sortBy) })
		if at < 0 {
			return config.Usagef("--sort-by %s: expected %s", sortBy, strings.ToLower(tracker.Enumerate(heads)))
		}
		by := heads[at]
		slices.SortStableFunc(rows, func(a, b map[string]string) int { return output.CompareCells(a[by], b[by]) })
	}
	lines := [][]string{heads}
	for _, row := range rows {
		cells := make([]string, len(heads))
		for i, head := range heads {
			cells[i] = cmp.Or(row[head], "-")
		}
		lines = append(lines, cells)
	}
	_, err := io.WriteString(w, output.Align(lines))
	return err
}
