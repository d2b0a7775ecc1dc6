package inspect

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
)

// A column is one column of a table of Rows.
type column[Row any] struct {
	head string
	cell func(*Row) string
}

// onRequest returns columns of -o wide.
func onRequest[Row any](f *output.Form, columns []column[Row]) []column[Row] {
	if f.Value != output.Wide {
		return nil
	}
	return columns
}

// heads returns the heads of columns, as --sort-by takes them.
func heads[Row any](columns ...[]column[Row]) (list []string) {
	for _, c := range slices.Concat(columns...) {
		list = append(list, strings.ToLower(c.head))
	}
	return list
}

// sortRows sorts rows by the column with this head, if there is one.
func sortRows[Row any](rows []Row, head string, columns ...[]column[Row]) {
	for _, c := range slices.Concat(columns...) {
		if strings.EqualFold(c.head, head) {
			slices.SortStableFunc(rows, func(a, b Row) int { return output.CompareCells(c.cell(&a), c.cell(&b)) })
		}
	}
}

// writeList prints rows of a kind in a form. If there are none it says so on stderr, which does not disturb
// a program that reads a table.
func writeList[Row any](cmd *cobra.Command, f *output.Form, kind string, columns []column[Row], rows []Row) error {
	if f.Document() {
		return f.Write(cmd.OutOrStdout(), output.NewList(kind, rows))
	}
	if len(rows) == 0 {
		what := cmd.Name()
		if what == "affinity" {
			what = "affinity entries"
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "no %s found\n", what)
		return nil
	}
	_, err := io.WriteString(cmd.OutOrStdout(), output.Align(tableLines(f, columns, rows)))
	return err
}

// tableLines returns a table: the heads, unless only names are asked for, and the cells of each row.
func tableLines[Row any](f *output.Form, columns []column[Row], rows []Row) (lines [][]string) {
	if f.Value == output.Name { // of the first column, without the port
		seen := make(map[string]bool)
		for i := range rows {
			name, _, _ := strings.Cut(columns[0].cell(&rows[i]), ":")
			if !seen[name] {
				seen[name] = true
				lines = append(lines, []string{name})
			}
		}
		return lines
	}
	heads := make([]string, len(columns))
	for i, column := range columns {
		heads[i] = column.head
	}
	lines = append(lines, heads)
	for i := range rows {
		cells := make([]string, len(columns))
		for j, column := range columns {
			cells[j] = column.cell(&rows[i])
		}
		lines = append(lines, cells)
	}
	return lines
}
