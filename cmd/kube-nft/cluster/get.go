package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
)

func newGet(c *connection) *cobra.Command {
	var form output.Form
	var nodes []string
	cmd := &cobra.Command{
		Use:   "get services|endpoints|affinity [[NAMESPACE/]NAME]",
		Short: "List Services, endpoints or affinity entries of all nodes",
		Long: `get runs kube-nft get on all Linux nodes, or on those of --node, and prints what they have in
their kernels, with the node in the first column.

It exits 0, and 2 if a node did not answer or does not have NAME.`,
		Example: `  kubectl kube-nft get services shop/web
  kubectl kube-nft get endpoints shop/web --node worker-1,worker-2
  kubectl kube-nft get affinity shop/game -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 2 {
				return config.Usagef("get: expected services, endpoints or affinity, and a name at most")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := form.Check(); err != nil {
				return err
			}
			cluster, err := c.connect(cmd.Flags())
			if err != nil {
				return inspect.TroubleError{Err: err}
			}
			members, err := cluster.members(cmd.Context(), nodes, c.selector)
			if err != nil {
				return inspect.TroubleError{Err: err}
			}
			remote := form.Value
			if form.Document() {
				remote = output.JSON
			}
			answers := cluster.answers(cmd.Context(), members, append([]string{"get", "-o", remote}, args...))
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
				err = writeTables(cmd.OutOrStdout(), answers)
			}
			return cmp.Or(err, writeProblems(cmd.ErrOrStderr(), withProblems(answers)))
		},
	}
	form.AddFlag(cmd, output.Table, output.Wide, output.JSON, output.YAML)
	cmd.Flags().StringSliceVar(&nodes, "node", nil, "only these nodes")
	return cmd
}

// A nodeDocument is what a command printed for programs on a node.
type nodeDocument struct {
	Node     string          `json:"node"`
	Problem  string          `json:"problem,omitempty"`
	Document json.RawMessage `json:"document,omitempty"`
}

// writeTables prints the tables of all nodes as one, with the node in the first column. Their columns have the widths
// that each node has chosen.
func writeTables(w io.Writer, answers []answer) error {
	width := len("NODE")
	for _, a := range answers {
		width = max(width, len(a.Node))
	}
	head := ""
	for _, a := range answers {
		first, rest, _ := strings.Cut(strings.TrimRight(a.Text, "\n"), "\n")
		if a.Problem != "" || first == "" {
			continue
		}
		if first != head { // widths may differ
			head = first
			if _, err := fmt.Fprintf(w, "%-*s  %s\n", width, "NODE", head); err != nil {
				return err
			}
		}
		for line := range strings.Lines(rest) {
			if _, err := fmt.Fprintf(w, "%-*s  %s\n", width, a.Node, strings.TrimRight(line, "\n")); err != nil {
				return err
			}
		}
	}
	return nil
}
