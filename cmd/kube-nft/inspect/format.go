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
	wide bool // of -o wide
}

// heads returns the heads of columns, as --sort-by takes them.
func heads[Row any](columns []column[Row]) (list []string) {
	for _, c := range columns {
		list = append(list, strings.ToLower(c.head))
	}
	return list
}

// writeList prints rows of a kind as the selection asks for it, without the columns with some heads. If there are no
// rows it says so on stderr, which does not disturb a program that reads a table.
func writeList[Row any](cmd *cobra.Command, s *selection, kind string, columns []column[Row], rows []Row,
	without ...string) error {
	for _, c := range columns {
		if strings.EqualFold(c.head, s.sortBy) {
			slices.SortStableFunc(rows, func(a, b Row) int { return output.CompareCells(c.cell(&a), c.cell(&b)) })
		}
	}
	if s.format.Document() {
		return s.format.Write(cmd.OutOrStdout(), output.NewList(kind, rows))
	}
	if len(rows) == 0 {
		what := cmd.Name()
		if what == "affinity" {
			what = "affinity entries"
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "no %s found\n", what)
		return nil
	}
	columns = slices.DeleteFunc(slices.Clone(columns), func(c column[Row]) bool {
		return c.wide && s.format.Value != output.Wide || slices.Contains(without, c.head)
	})
	_, err := io.WriteString(cmd.OutOrStdout(), output.Align(tableLines(&s.format, columns, rows)))
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
