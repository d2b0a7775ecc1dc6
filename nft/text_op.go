package nft

import (
	"fmt"
	"strings"
)

// Text returns the operation as nft commands, one a line: one command for each rule that it adds.
func (o Op) Text() string { return o.render(o.Family.NFT()+" "+TableName+" ", len(o.Elements)) }

// ShortText is the operation for an error that names the table elsewhere: one line, with the first
// rule and few elements only.
func (o *Op) ShortText() string {
	const elementsShown = 3
	short := *o
	if len(short.Rules) > 1 {
		short.Rules = short.Rules[:1]
	}
	return short.render("", elementsShown)
}

// render prints the operation with the given words before the object's name, and at most
// shown elements.
func (o *Op) render(table string, shown int) string {
	switch {
	case o.Elements != nil:
		return fmt.Sprintf("%s element %s%s { %s }", o.Verb, table, o.Set.Name, o.elementsText(shown))
	case o.Rules != nil:
		return o.rulesText(table)
	case o.Set != nil:
		return fmt.Sprintf("%s %s %s%s%s", o.Verb, o.Set.Noun(), table, o.Set.Name, o.body(o.Set.declaration(o.Family)))
	case o.Chain != nil && o.Chain.Hook != nil:
		return fmt.Sprintf("%s chain %s%s%s", o.Verb, table, o.Chain.Name, o.body([]string{o.Chain.Hook.text()}))
	case o.Chain != nil:
		return fmt.Sprintf("%s chain %s%s", o.Verb, table, o.Chain.Name)
	}
	return o.tableText()
}

// body is a definition in braces; empty unless the operation is an Add.
func (o *Op) body(lines []string) string {
	if o.Verb != Add {
		return ""
	}
	var b strings.Builder
	b.WriteString(" {")
	for _, line := range lines {
		b.WriteString(" " + strings.TrimSuffix(line, ";") + ";")
	}
	return b.String() + " }"
}

func (o *Op) tableText() string {
	text := fmt.Sprintf("%s table %s %s", o.Verb, o.Family.NFT(), TableName)
	if o.Table != nil && o.Table.Comment != "" {
		text += o.body([]string{`comment "` + PlainComment(o.Table.Comment) + `"`})
	}
	return text
}

func (o *Op) rulesText(table string) string {
	lines := make([]string, len(o.Rules))
	for i, rule := range o.Rules {
		lines[i] = fmt.Sprintf("%s rule %s%s %s", o.Verb, table, o.Chain.Name, rule.Text(o.Family))
	}
	return strings.Join(lines, "\n")
}

func (o *Op) elementsText(shown int) string {
	w := elementWriter{set: o.Set, family: o.Family, keysOnly: o.Verb != Add}
	for i := range o.Elements[:min(shown, len(o.Elements))] {
		if i > 0 {
			w.buf = append(w.buf, ", "...)
		}
		w.buf = w.appendElement(w.buf, o.Elements[i].Key, &o.Elements[i].Element)
	}
	if more := len(o.Elements) - shown; more > 0 {
		w.buf = fmt.Appendf(w.buf, ", and %d more", more)
	}
	return string(w.buf)
}
