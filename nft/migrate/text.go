package migrate

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// textWidth is the largest number of columns of a plan's text, unless a single word is longer.
const textWidth = 100

// Text returns the plan for an operator. Each line begins with the fate of a thing or, among the
// checks, with its level.
func (p *Plan) Text() string {
	var b strings.Builder
	b.WriteString("Before\n")
	for _, c := range p.Checks {
		text := c.About + ": " + c.Found
		if c.Means != "" {
			text += " — " + c.Means
		}
		if c.Do != "" {
			text += ". Do: " + c.Do
		}
		b.WriteString(line(string(c.Level), text))
	}
	b.WriteString("\nFound\n")
	for i := range p.Inventory.Parts {
		part, verdict := &p.Inventory.Parts[i], ""
		if part.Clean() {
			verdict = ": nothing of kube-proxy's to remove"
		}
		fmt.Fprintf(&b, "  %s%s\n", partName(part), verdict)
		if part.Needs != "" {
			b.WriteString(line(string(Unknown), "could not be read: needs "+part.Needs))
			continue
		}
		for _, a := range part.Actions {
			will, rest, _ := strings.Cut(strings.Replace(a.Will, "; ", " ", 1), " ")
			text := a.Object + " — " + a.Means
			if rest != "" {
				text += "; " + rest
			}
			b.WriteString(line(will, text))
		}
	}
	if len(p.Inventory.Parts) == 0 {
		b.WriteString(line("", "nothing of kube-proxy's, and none of the tables that it writes to"))
	}
	b.WriteString("\nSteps of kube-nft migrate apply\n")
	for i, step := range p.Steps {
		b.WriteString(line(fmt.Sprintf("%d.", i+1), step))
	}
	if !p.Ready {
		b.WriteString("\nThis node cannot be migrated: see the lines that begin with blocks.\n")
	}
	return b.String()
}

// line writes text behind a first word, broken into indented lines of textWidth.
func line(first, text string) string {
	const margin = 12
	var b strings.Builder
	column := margin
	fmt.Fprintf(&b, "    %-*s", margin-4, first)
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > textWidth:
			b.WriteString("\n" + strings.Repeat(" ", margin))
			column = margin
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	b.WriteByte('\n')
	return b.String()
}
