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
		Use:   "get services|endpoints|affinity [[NAMESPACE/]NAME]",
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
				return inspect.TroubleError{Err: err}
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

// columnHead matches the head of a column, with the gap to the next one.
var columnHead = regexp.MustCompile(`\S+(?: \S+)*(?: {2,}|$)`)

// writeTables prints the tables of all nodes as one, with the node in the first column, sorted by the column with a
// head if there is one.
func writeTables(w io.Writer, answers []answer, sortBy string) error {
	var lines [][]string
	for _, a := range answers {
		head, rows, _ := strings.Cut(strings.TrimRight(a.Text, "\n"), "\n")
		if a.Problem != "" || head == "" {
			continue
		}
		columns := columnHead.FindAllStringIndex(head, -1) // heads are ASCII
		cells := func(node, line string) []string {
			list, letters := []string{node}, []rune(line)
			for i, c := range columns {
				end := len(letters)
				if i+1 < len(columns) {
					end = min(end, c[1])
				}
				list = append(list, strings.TrimRight(string(letters[min(c[0], end):end]), " "))
			}
			return list
		}
		if len(lines) == 0 {
			lines = append(lines, cells("NODE", head))
		}
		for line := range strings.Lines(rows) {
			lines = append(lines, cells(a.Node, strings.TrimRight(line, "\n")))
		}
	}
	if sortBy != "" && len(lines) > 0 {
		at := slices.IndexFunc(lines[0], func(head string) bool { return strings.EqualFold(head, sortBy) })
		if at < 0 {
			return config.Usagef("--sort-by %s: expected %s", sortBy, strings.ToLower(tracker.Enumerate(lines[0])))
		}
		slices.SortStableFunc(lines[1:], func(a, b []string) int { return output.CompareCells(a[at], b[at]) })
	}
	_, err := io.WriteString(w, output.Align(lines))
	return err
}
