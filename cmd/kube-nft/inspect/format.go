package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
)

// Formats of what commands print: a table or a text for people, documents for programs.
const (
	formatTable = "table"
	formatWide  = "wide" // the table with more columns
	formatName  = "name" // the names of Services alone
	formatText  = "text"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

// A format is the value of --output; the first allowed one is the default.
type format struct {
	value   string
	allowed []string
}

// addFlag declares --output.
func (f *format) addFlag(cmd *cobra.Command, allowed ...string) {
	f.allowed = allowed
	cmd.PersistentFlags().StringVarP(&f.value, "output", "o", allowed[0], "what to print: "+alternatives(allowed))
	offer(cmd, "output", allowed...)
}

func (f *format) check() error {
	if slices.Contains(f.allowed, f.value) {
		return nil
	}
	return config.Usagef("--output %s: expected %s", f.value, alternatives(f.allowed))
}

// alternatives joins words as in a, b or c.
func alternatives(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// offer makes the shell offer values of a flag.
func offer(cmd *cobra.Command, flag string, values ...string) {
	fixed := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(flag, fixed); err != nil {
		panic(err) // the flag is declared one line before
	}
}

// document writes a value as JSON or YAML.
func (f *format) document(w io.Writer, value any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	encoded := text.Bytes()
	if err == nil && f.value == formatYAML {
		encoded, err = yaml.JSONToYAML(encoded)
	}
	if err != nil {
		return fmt.Errorf("print as %s: %w", f.value, err)
	}
	_, err = w.Write(encoded)
	return err
}

// A column is one column of a table of Rows.
type column[Row any] struct {
	head string
	cell func(*Row) string
}

// onRequest returns columns of -o wide.
func onRequest[Row any](f *format, columns []column[Row]) []column[Row] {
	if f.value != formatWide {
		return nil
	}
	return columns
}

// tabular reports whether the format is for people who read lines.
func (f *format) tabular() bool {
	return slices.Contains([]string{formatTable, formatWide, formatName}, f.value)
}

// writeList prints rows in a format. If there are none it says so on stderr, which does not disturb
// a program that reads a table.
func writeList[Row any](cmd *cobra.Command, f *format, columns []column[Row], rows []Row) error {
	if !f.tabular() {
		return f.document(cmd.OutOrStdout(), rows)
	}
	if len(rows) == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "no %s found\n", cmd.Name())
		return nil
	}
	return writeLines(cmd.OutOrStdout(), tableLines(f, columns, rows))
}

// tableLines returns a table: the heads, unless only names are asked for, and the cells of each row.
func tableLines[Row any](f *format, columns []column[Row], rows []Row) (lines [][]string) {
	if f.value == formatName { // of the first column, without the port
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

// writeLines aligns the cells of lines and writes them.
func writeLines(w io.Writer, lines [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, cells := range lines {
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

// wrap breaks text between words at a width and indents lines after the first. Longer words stay
// whole.
func wrap(text string, width int, indent string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		n := len([]rune(word))
		switch {
		case i > 0 && column+1+n > width:
			b.WriteString("\n" + indent)
			column = 0
		case i > 0:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String() + "\n"
}
