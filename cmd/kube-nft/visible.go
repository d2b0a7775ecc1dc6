package main

import (
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/nft"
)

// A visibleWriter passes on lines of text without anything that a terminal would obey. All that a
// command prints goes through it, for much of that comes from others. Its methods may be called from
// any goroutine.
type visibleWriter struct {
	to       io.Writer
	coloured bool // levels of log lines have colours

	mu   sync.Mutex
	rest []byte // the beginning of a character that the next Write completes
}

// newVisibleWriter returns a writer in front of one. It adds colours on a terminal, unless the environment
// has NO_COLOR or says that the terminal has none.
func newVisibleWriter(to io.Writer) *visibleWriter {
	coloured := config.IsTerminal(to) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return &visibleWriter{to: to, coloured: coloured}
}

// IsTerminal reports whether the output goes to a terminal.
func (v *visibleWriter) IsTerminal() bool { return config.IsTerminal(v.to) }

// Rows returns how many lines the terminal shows; 0 if there is none, or one that does not move its cursor.
func (v *visibleWriter) Rows() int {
	if os.Getenv("TERM") == "dumb" {
		return 0
	}
	return config.TerminalRows(v.to)
}

// Repaint shows lines in the place of what the terminal shows. Each line clears what it replaces, so that
// nothing flickers.
func (v *visibleWriter) Repaint(lines string) error {
	const home, clearLine, clearBelow = "\x1b[H", "\x1b[K", "\x1b[J" // ECMA-48: CUP, EL, ED
	v.mu.Lock()
	defer v.mu.Unlock()
	_, err := io.WriteString(v.to, home+strings.ReplaceAll(v.text([]byte(lines)), "\n", clearLine+"\n")+clearBelow)
	return err
}

// levelPattern matches the beginning of a log line for people.
var levelPattern = regexp.MustCompile(`(?m)^(\d{4}-\d\d-\d\dT[0-9:.]+Z?[0-9:+-]*\t)(debug|info|warn|error)\t`)

// levelColours are the numbers of colours in ECMA-48, SGR.
var levelColours = map[string]string{"debug": "35", "info": "34", "warn": "33", "error": "31"}

// text returns what a terminal shows. Colours come last: what an object's author wrote into a line cannot
// bring its own.
func (v *visibleWriter) text(from []byte) string {
	text := nft.VisibleLines(string(from))
	if !v.coloured {
		return text
	}
	return levelPattern.ReplaceAllStringFunc(text, func(begin string) string {
		at, level, _ := strings.Cut(strings.TrimSuffix(begin, "\t"), "\t")
		return at + "\t\x1b[" + levelColours[level] + "m" + level + "\x1b[0m\t"
	})
}

// Write passes p on, except for the beginning of a character at its end.
func (v *visibleWriter) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	text := append(v.rest, p...)
	whole := len(text)
	for at := whole - 1; at >= max(0, whole-utf8.UTFMax); at-- {
		if utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				whole = at
			}
			break
		}
	}
	v.rest = append([]byte(nil), text[whole:]...)
	if _, err := io.WriteString(v.to, v.text(text[:whole])); err != nil {
		return 0, err
	}
	return len(p), nil
}

// flush writes the remaining bytes.
func (v *visibleWriter) flush() {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, _ = io.WriteString(v.to, v.text(v.rest)) // an error here has no reader
	v.rest = nil
}
