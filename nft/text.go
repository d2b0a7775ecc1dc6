package nft

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns the tables exactly as nft list ruleset prints them after a commit into an empty
// kernel. It leaves out later counts and what the packet path added.
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
	for i, name := range t.SetNames() {
		if i > 0 {
			b.WriteByte('\n')
		}
		t.Sets[name].write(b, t.Family)
	}
	for i, chain := range slices.SortedFunc(maps.Values(t.Chains), CompareChains) {
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

// priorityText prints a priority as nft does: near a named priority of this hook, as the distance
// from it. Source: enum nf_ip_hook_priorities in linux/netfilter_ipv4.h, and nft 1.0.6 for the names.
func (h *Hook) priorityText() string {
	const near = 10
	for _, named := range []struct {
		name     string
		priority int32
		point    string // the one hook that has the name; empty for all
	}{
		{"raw", -300, ""}, {"mangle", -150, ""}, {"filter", 0, ""}, {"security", 50, ""},
		{"dstnat", -100, "prerouting"}, {"srcnat", 100, "postrouting"},
	} {
		switch d := h.Priority - named.priority; {
		case named.point != "" && named.point != h.Point:
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
	for i, key := range s.sortedKeys() {
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

// elementWriter prints the elements of a set.
type elementWriter struct {
	set      *Set
	family   Family
	counters bool // print the counter of a fresh element
	keysOnly bool // print neither comment nor data
	buf      []byte
}

// appendElement appends "key [counter] [timeout] [comment] [: data]".
func (w *elementWriter) appendElement(b []byte, key string, el *Element) []byte {
	b = w.appendKey(b, key)
	if w.keysOnly {
		return b
	}
	if w.counters {
		b = append(b, " counter packets 0 bytes 0"...)
	}
	if el.Life != nil {
		b = append(append(b, " timeout "...), DurationText(el.Life.Timeout)...)
		if el.Life.Expires != 0 {
			b = append(append(b, " expires "...), DurationText(el.Life.Expires)...)
		}
	}
	if comment := PlainComment(el.Comment); comment != "" {
		b = append(b, ` comment "`...)
		b = append(append(b, comment...), '"')
	}
	switch {
	case w.set.Verdicts:
		b = append(b, " : "...)
		if el.Verdict != nil {
			b = append(b, el.Verdict.String()...)
		}
	case len(w.set.Data) > 0:
		b = appendFields(append(b, " : "...), w.family, w.set.Data, el.Data, "")
	}
	return b
}

func (w *elementWriter) appendKey(b []byte, key string) []byte {
	if !w.set.Interval {
		return appendFields(b, w.family, w.set.Key, key, "")
	}
	half := len(key) / 2
	return appendFields(b, w.family, w.set.Key, key[:half], key[half:])
}

// appendFields prints a concatenation, or with last a range of them. Of raw bytes that are too
// short for the fields it prints the whole fields only.
func appendFields(b []byte, f Family, fields []Field, first, last string) []byte {
	for i, field := range fields {
		n := field.padded(f, len(fields) > 1)
		if len(first) < n {
			return b
		}
		if i > 0 {
			b = append(b, " . "...)
		}
		if length := field.Len(f); len(last) < n {
			b = field.appendValue(b, first[:length])
		} else {
			b = field.appendRange(b, first[:length], last[:length])
			last = last[n:]
		}
		first = first[n:]
	}
	return b
}

func (d Field) appendValue(b []byte, raw string) []byte {
	switch d {
	case FieldAddr:
		return append(b, bytesText([]byte(raw))...)
	case FieldProtocol:
		return append(b, ProtocolText(raw[0])...)
	case FieldPort:
		return strconv.AppendUint(b, uint64(raw[0])<<8|uint64(raw[1]), 10)
	}
	return strconv.AppendUint(b, uint64(binary.NativeEndian.Uint32([]byte(raw))), 10)
}

// appendRange prints a range as nft does: as a single value or as a prefix if possible, else as
// first-last.
func (d Field) appendRange(b []byte, first, last string) []byte {
	if first == last {
		return d.appendValue(b, first)
	}
	if n, ok := prefixLen(first, last); ok && d == FieldAddr {
		b = append(d.appendValue(b, first), '/')
		return strconv.AppendInt(b, int64(n), 10)
	}
	return d.appendValue(append(d.appendValue(b, first), '-'), last)
}

// prefixLen is the length of the prefix that spans first to last, if there is one.
func prefixLen(first, last string) (n int, ok bool) {
	i := 0
	for i < len(first) && first[i] == last[i] {
		i++
	}
	if i == len(first) {
		return 8 * i, true
	}
	host := first[i] ^ last[i]
	if host&(host+1) != 0 || first[i]&host != 0 {
		return 0, false
	}
	for j := i + 1; j < len(first); j++ {
		if first[j] != 0 || last[j] != 0xff {
			return 0, false
		}
	}
	return 8*i + bits.LeadingZeros8(host), true
}

// ElementText is the element under a key as nft lists it, without its counter.
func (s *Elements) ElementText(f Family, key string) string {
	w := elementWriter{set: s.Set, family: f}
	el := s.Map[key]
	return string(w.appendElement(nil, key, &el))
}

// maxComment is the length of the longest comment in bytes. Source: NFTNL_UDATA_COMMENT_MAXLEN
// in libnftnl, 128 with the NUL.
const maxComment = 127

// PlainComment drops from a comment what could end it or does not print. The result has at most
// maxComment bytes of ASCII, without double quotes and backslashes.
func PlainComment(s string) string {
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

// sortedKeys lists the keys in the order in which nft prints them. nft sorts single values and
// their ranges by value. It reads a concatenation of values as one number in the host's byte order:
// the last byte counts most. It does not sort ranges of concatenations; the kernel returns them in
// the order of addition, which for us is by key.
func (s *Elements) sortedKeys() []string {
	keys := slices.Collect(maps.Keys(s.Map))
	if !s.Set.Interval && len(s.Set.Key) > 1 || len(s.Set.Key) == 1 && s.Set.Key[0] == FieldIndex {
		slices.SortFunc(keys, compareFromEnd)
	} else {
		slices.Sort(keys)
	}
	return keys
}

// compareFromEnd compares two keys from their last byte on, as a little-endian host does. Padding
// is zero in both and does not matter.
func compareFromEnd(a, b string) int {
	for i := min(len(a), len(b)) - 1; i >= 0; i-- {
		if a[i] != b[i] {
			return cmp.Compare(a[i], b[i])
		}
	}
	return cmp.Compare(len(a), len(b))
}

// DurationText prints a duration as nft does: all units that are not zero, from days down to
// milliseconds.
func DurationText(d time.Duration) string {
	if d < time.Millisecond {
		return "0s"
	}
	var b strings.Builder
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / unit.length; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, unit.name)
			d -= n * unit.length
		}
	}
	return b.String()
}

// prefixText prints a prefix as nft does: a single address without its length.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return addrText(p.Addr())
	}
	return addrText(p.Masked().Addr()) + "/" + strconv.Itoa(p.Bits())
}

// Visible returns a text of others for people: control characters, which a terminal would obey,
// characters that change the direction of writing, and bytes that are no character stand in it as
// escapes such as \u001b. Any user may choose the arguments of a process, the comment of a rule or the
// name of a chain. The escapes are also those of JSON, except \x9b for a byte that is no character.
func Visible(text string) string { return visible(text, "") }

// VisibleLines is Visible, except that line ends and tabs stay.
func VisibleLines(text string) string { return visible(text, "\n\t") }

// visible returns text with escapes for all that is not printed, except the characters of allowed.
func visible(text, allowed string) string {
	keep := func(r rune) bool { return strconv.IsPrint(r) || strings.ContainsRune(allowed, r) }
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !keep(r) }) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		switch _, size := utf8.DecodeRuneInString(text[i:]); {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case keep(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
