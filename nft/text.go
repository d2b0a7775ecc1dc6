package nft

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// maxComment is the length of the longest comment in bytes. Source: NFTNL_UDATA_COMMENT_MAXLEN
// in libnftnl, 128 with the NUL.
const maxComment = 127

// plainComment strips a comment of all that could end it or that does not print. What is
// left is at most maxComment bytes of ASCII without double quotes and backslashes.
func plainComment(s string) string {
	clean := func(r rune) bool { return r >= ' ' && r <= '~' && r != '"' && r != '\\' }
	if strings.IndexFunc(s, func(r rune) bool { return !clean(r) }) >= 0 {
		s = strings.Map(func(r rune) rune {
			if clean(r) {
				return r
			}
			return -1
		}, s)
	}
	return s[:min(len(s), maxComment)]
}

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
		fmt.Fprintf(b, "\tcomment \"%s\"\n", plainComment(t.Comment))
	}
	for i, name := range slices.SortedFunc(maps.Keys(t.Sets), setLess) {
		if i > 0 {
			b.WriteByte('\n')
		}
		t.Sets[name].write(b, t.Family)
	}
	for i, chain := range slices.SortedFunc(maps.Values(t.Chains), chainLess) {
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
	fmt.Fprintf(b, "\t%s %s {\n", s.Set.noun(), s.Set.Name)
	for _, line := range s.Set.declaration(f) {
		fmt.Fprintf(b, "\t\t%s\n", line)
	}
	if !s.Set.Dynamic && len(s.Map) > 0 {
		s.writeElements(b, f)
	}
	b.WriteString("\t}\n")
}

// noun is what nft calls the set.
func (s *Set) noun() string {
	if s.isMap() {
		return "map"
	}
	return "set"
}

// declaration lists the lines that declare the set.
func (s *Set) declaration(f Family) []string {
	lines := []string{s.typeText(f)}
	if s.Size != 0 {
		lines = append(lines, "size "+strconv.FormatUint(uint64(s.Size), 10))
	}
	switch {
	case s.Interval && s.Dynamic:
		lines = append(lines, "flags interval,dynamic,timeout")
	case s.Interval:
		lines = append(lines, "flags interval")
	case s.Dynamic:
		lines = append(lines, "flags dynamic,timeout")
	}
	if s.Counters {
		lines = append(lines, "counter")
	}
	return lines
}

func (s *Set) typeText(f Family) string {
	word, name := "type ", Field.typeName
	if s.declaredByExpression() {
		word, name = "typeof ", Field.expression
	}
	text := word + fieldsText(f, s.Key, name)
	switch {
	case s.Verdicts:
		return text + " : verdict"
	case len(s.Data) > 0:
		return text + " : " + fieldsText(f, s.Data, name)
	}
	return text
}

func fieldsText(f Family, fields []Field, name func(Field, Family) string) string {
	names := make([]string, len(fields))
	for i, field := range fields {
		names[i] = name(field, f)
	}
	return strings.Join(names, " . ")
}

// typeName is the field's type in nft's words.
func (d Field) typeName(f Family) string {
	switch {
	case d == FieldAddr && f == IP6:
		return "ipv6_addr"
	case d == FieldAddr:
		return "ipv4_addr"
	case d == FieldProtocol:
		return "inet_proto"
	case d == FieldPort:
		return "inet_service"
	}
	return "integer"
}

// expression is the field as typeof declares it.
func (d Field) expression(f Family) string {
	switch d {
	case FieldAddr:
		return Destination.text(f)
	case FieldProtocol:
		return Protocol.text(f)
	case FieldPort:
		return Port.text(f)
	}
	return RandomIndex(indexModulus).text(f)
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

// elementsPerLine is how many elements nft prints in a line, by the type of the key. Source:
// calculate_delim in nftables' expression.c.
func (s *Set) elementsPerLine(f Family) int {
	switch {
	case len(s.Key) != 1:
		return 1
	case s.Key[0] != FieldAddr:
		return 5
	case f == IP6:
		return 1
	}
	return 2
}

// sortedKeys lists the keys in the order in which nft prints them. That of single values and
// of their ranges is by value. A concatenation of values it reads as one number of the
// host's byte order: the last byte counts most. Ranges of concatenations it does not
// sort; the kernel returns them as they were added, which is here by key.
func (s *Elements) sortedKeys(f Family) []string {
	keys := slices.Collect(maps.Keys(s.Map))
	switch {
	case !s.Set.Interval && len(s.Set.Key) > 1:
		slices.SortFunc(keys, compareFromEnd)
	case len(s.Set.Key) == 1 && s.Set.Key[0] == FieldIndex:
		slices.SortFunc(keys, compareFromEnd)
	default:
		slices.Sort(keys)
	}
	return keys
}

// compareFromEnd compares two keys of a little-endian host from their last byte on. Padding
// is zero in both and does not matter.
func compareFromEnd(a, b string) int {
	for i := min(len(a), len(b)) - 1; i >= 0; i-- {
		if a[i] != b[i] {
			return cmp.Compare(a[i], b[i])
		}
	}
	return cmp.Compare(len(a), len(b))
}
