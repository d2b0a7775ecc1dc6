package nft

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Text returns the tables exactly as nft list ruleset prints them after a commit into an
// empty kernel: what was counted since and what the packet path added is left out.
func (t Tables) Text() string {
	var b strings.Builder
	for _, f := range Families {
		if table := t[f]; table != nil {
			table.write(&b)
		}
	}
	return b.String()
}

func (t *Table) write(b *strings.Builder) {
	fmt.Fprintf(b, "table %s %s {\n", t.Family.NFT(), TableName)
	if t.Comment != "" {
		fmt.Fprintf(b, "\tcomment \"%s\"\n", PlainComment(t.Comment))
	}
	for i, name := range sortedNames(t.Sets) {
		if i > 0 {
			b.WriteByte('\n')
		}
		t.Sets[name].write(b, t.Family)
	}
	for i, chain := range slices.SortedFunc(maps.Values(t.Chains), compareChains) {
		if i > 0 || len(t.Sets) > 0 {
			b.WriteByte('\n')
		}
		chain.write(b, t.Family)
	}
	b.WriteString("}\n")
}

func (c *Chain) write(b *strings.Builder, f Family) {
	fmt.Fprintf(b, "\tchain %s {\n", c.Name)
	if c.Hook != nil {
		fmt.Fprintf(b, "\t\t%s\n", c.Hook.text())
	}
	for _, rule := range c.Rules {
		fmt.Fprintf(b, "\t\t%s\n", rule.Text(f))
	}
	b.WriteString("\t}\n")
}

func (h *Hook) text() string {
	return fmt.Sprintf("type %s hook %s priority %s; policy accept;", h.Type, h.Point, h.priorityText())
}

// priorityText prints a priority as nft does: near one that has a name at this hook, as the
// distance from it.
func (h *Hook) priorityText() string {
	const near = 10
	for _, named := range h.namedPriorities() {
		switch d := h.Priority - named.priority; {
		case d == 0:
			return named.name
		case d > 0 && d <= near:
			return named.name + " + " + strconv.Itoa(int(d))
		case d < 0 && d >= -near:
			return named.name + " - " + strconv.Itoa(int(-d))
		}
	}
	return strconv.Itoa(int(h.Priority))
}

type namedPriority struct {
	name     string
	priority int32
}

// namedPriorities are those of the families ip and ip6. Source: enum nf_ip_hook_priorities in
// linux/netfilter_ipv4.h and the names that nft 1.0.6 has for them.
func (h *Hook) namedPriorities() []namedPriority {
	names := []namedPriority{{"raw", -300}, {"mangle", -150}, {"filter", 0}, {"security", 50}}
	switch h.Point {
	case "prerouting":
		names = append(names, namedPriority{"dstnat", -100})
	case "postrouting":
		names = append(names, namedPriority{"srcnat", 100})
	}
	return names
}

func (s *Elements) write(b *strings.Builder, f Family) {
	fmt.Fprintf(b, "\t%s %s {\n", s.Set.Noun(), s.Set.Name)
	for _, line := range s.Set.declaration(f) {
		fmt.Fprintf(b, "\t\t%s\n", line)
	}
	if !s.Set.Dynamic && len(s.Map) > 0 {
		s.writeElements(b, f)
	}
	b.WriteString("\t}\n")
}

// writeElements prints the elements in the order and with the line breaks of nft.
func (s *Elements) writeElements(b *strings.Builder, f Family) {
	w := elementWriter{set: s.Set, family: f, counters: s.Set.Counters}
	perLine := s.Set.elementsPerLine(f)
	b.WriteString("\t\telements = { ")
	for i, key := range s.sortedKeys(f) {
		switch {
		case i == 0:
		case i%perLine == 0:
			b.WriteString(",\n\t\t\t     ")
		default:
			b.WriteString(", ")
		}
		el := s.Map[key]
		w.buf = w.appendElement(w.buf[:0], key, &el)
		b.Write(w.buf)
	}
	b.WriteString(" }\n")
}
