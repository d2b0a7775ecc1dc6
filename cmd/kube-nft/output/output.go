// Package output prints what commands have found in the form of --output: declare the flag with Form.AddFlag, and give
// Form.Write a document that begins with a Kind. A command that goes on gives each document to Form.WriteNext, or its
// text to a Screen. Other tables and texts for people are the commands' own.
package output

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/tracker"
)

// Values of --output: a table or a text for people, documents for programs.
const (
	Table = "table"
	Wide  = "wide" // the table with more columns
	Name  = "name" // the names of Services alone
	Text  = "text"
	JSON  = "json"
	YAML  = "yaml"
)

// A Form is the value of --output; the first allowed one is the default. It is a pflag.Value.
type Form struct {
	Value   string
	allowed []string
}

// AddFlag declares --output.
func (f *Form) AddFlag(cmd *cobra.Command, allowed ...string) {
	f.Value, f.allowed = allowed[0], allowed
	cmd.PersistentFlags().VarP(f, "output", "o", "what to print: "+tracker.Enumerate(allowed))
	Offer(cmd, "output", allowed...)
}

// Set implements pflag.Value.
func (f *Form) Set(value string) error {
	if !slices.Contains(f.allowed, value) {
		return errors.New("expected " + tracker.Enumerate(f.allowed))
	}
	f.Value = value
	return nil
}

// String implements pflag.Value.
func (f *Form) String() string { return f.Value }

// Type implements pflag.Value.
func (f *Form) Type() string { return "string" }

// Document reports whether the form is for programs.
func (f *Form) Document() bool { return f.Value == JSON || f.Value == YAML }

// Write writes a document as JSON or YAML.
func (f *Form) Write(w io.Writer, document any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(document)
	encoded := text.Bytes()
	if err == nil && f.Value == YAML {
		encoded, err = yaml.JSONToYAML(encoded)
	}
	if err != nil {
		return fmt.Errorf("print as %s: %w", f.Value, err)
	}
	_, err = w.Write(encoded)
	return err
}

// A Document is for programs as it is, and for people as its text in whole lines. kubectl kube-nft reads it on each
// node, and prints it as the node would.
type Document interface{ Text() string }

// Print writes a document, or its text.
func (f *Form) Print(w io.Writer, d Document) error {
	if f.Document() {
		return f.Write(w, d)
	}
	_, err := io.WriteString(w, d.Text())
	return err
}

// WriteNext writes the next document: as JSON on a line of its own, or as its text.
func (f *Form) WriteNext(w io.Writer, d Document) error {
	if f.Value == JSON {
		return WriteLine(w, d)
	}
	_, err := io.WriteString(w, d.Text())
	return err
}

// WriteLine writes a document as JSON on a line of its own.
func WriteLine(w io.Writer, document any) error { return json.NewEncoder(w).Encode(document) }

// Kind returns the beginning of a document; docs/operations.md lists the kinds.
func Kind(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: config.APIVersion, Kind: kind}
}

// A List is a document with rows.
type List[Row any] struct {
	metav1.TypeMeta
	Items []Row `json:"items"`
}

// NewList returns a list of rows of a kind: kindList.
func NewList[Row any](kind string, rows []Row) *List[Row] {
	return &List[Row]{Kind(kind + "List"), rows}
}

// An Alignment keeps the columns of lines that are printed later below those of before.
type Alignment struct{ widths []int }

// Lines joins the cells of each line. The last cell of a line has any length.
func (a *Alignment) Lines(lines [][]string) string {
	for _, cells := range lines {
		a.widths = append(a.widths, make([]int, max(0, len(cells)-len(a.widths)))...)
		for i, cell := range cells {
			a.widths[i] = max(a.widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, cells := range lines {
		for i, cell := range cells[:len(cells)-1] {
			fmt.Fprintf(&b, "%-*s  ", a.widths[i], cell)
		}
		b.WriteString(cells[len(cells)-1] + "\n")
	}
	return b.String()
}

// Align returns a table of lines of cells.
func Align(lines [][]string) string { return new(Alignment).Lines(lines) }

// CompareCells orders cells of a table: durations by their length, other texts by the numbers in them. A - for what is
// missing comes first.
func CompareCells(a, b string) int {
	if x, err := time.ParseDuration(a); err == nil {
		if y, err := time.ParseDuration(b); err == nil {
			return cmp.Compare(x, y)
		}
	}
	for a != "" && b != "" {
		x, y := len(a)-len(strings.TrimLeft(a, digits)), len(b)-len(strings.TrimLeft(b, digits))
		if x > 0 && y > 0 {
			n, m := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
			if c := cmp.Or(cmp.Compare(len(n), len(m)), cmp.Compare(n, m)); c != 0 {
				return c
			}
			a, b = a[x:], b[y:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

const digits = "0123456789"

// Offer makes the shell offer values of a flag.
func Offer(cmd *cobra.Command, flag string, values ...string) {
	OfferFrom(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// OfferFrom makes the shell offer what a function returns as values of a flag.
func OfferFrom(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(err) // the flag is declared before
	}
}

// A painter is a writer that, on a terminal, can replace the lines that it showed before.
type painter interface {
	Rows() int // of the terminal; 0 if there is none
	Repaint(lines string) error
}

// A Screen shows one text after the other. On a terminal, each takes the place of the one before.
type Screen struct {
	out   io.Writer
	begun bool
}

// NewScreen returns a screen on a command's output.
func NewScreen(out io.Writer) *Screen { return &Screen{out: out} }

// Rows returns how many lines the terminal has; 0 if there is no terminal.
func (s *Screen) Rows() int {
	if terminal, ok := s.out.(painter); ok {
		return terminal.Rows()
	}
	return 0
}

// Show prints a text of whole lines.
func (s *Screen) Show(text string) error {
	if s.Rows() > 0 {
		return s.out.(painter).Repaint(text)
	}
	if s.begun {
		text = "\n" + text
	}
	s.begun = true
	_, err := io.WriteString(s.out, text)
	return err
}
