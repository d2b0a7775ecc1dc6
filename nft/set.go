package nft

import (
	"slices"
	"strconv"
	"strings"
)

// A Field is one part of the key of a set or of the data of a map.
type Field uint8

// The fields that our sets are made of.
const (
	FieldAddr     Field = iota + 1 // ipv4_addr or ipv6_addr, network order
	FieldProtocol                  // inet_proto, one byte
	FieldPort                      // inet_service, two bytes, network order
	FieldIndex                     // a 32-bit index in host order: typeof numgen random mod 65536
)

// A Set is the definition of a set or, with Data or Verdicts, of a map. Key and data are
// raw bytes as the kernel holds them: a concatenation pads each field to four bytes.
type Set struct {
	Name     string
	Rank     int // batches and the text order sets by rank, then by name
	Key      []Field
	Data     []Field // of a map; nil for a set and for a verdict map
	Verdicts bool    // a verdict map
	Interval bool    // elements are ranges: their Key is the first key followed by the last
	Dynamic  bool    // the packet path adds elements, with a timeout (flags dynamic,timeout)
	Size     uint32  // a hard limit on the number of elements; 0: none
	Counters bool    // each element counts the packets that matched it
	// Protocol is that of the ports in key and data, for a map declared with typeof; 0 stands for any. The kernel does
	// not know it: it only matters to nft. For the ports in the data of a map nft needs one, whatever rules use the map:
	// it refuses to load rules over a map that exists and has th dport in its data.
	Protocol uint8
}

// Equal reports whether s and t define the same set; their ranks do not matter.
func (s *Set) Equal(t *Set) bool {
	return s.Name == t.Name && slices.Equal(s.Key, t.Key) && slices.Equal(s.Data, t.Data) &&
		s.Verdicts == t.Verdicts && s.Interval == t.Interval && s.Dynamic == t.Dynamic &&
		s.Size == t.Size && s.Counters == t.Counters
}

// KeyLen is the length in bytes of one key of the set in a table of family f: the sum of its
// fields. If there is more than one, each is padded to a register of four bytes.
func (s *Set) KeyLen(f Family) int { return fieldsLen(f, s.Key) }

// DataLen is the length in bytes of the data of the map in a table of family f.
func (s *Set) DataLen(f Family) int { return fieldsLen(f, s.Data) }

func fieldsLen(f Family, fields []Field) (n int) {
	for _, field := range fields {
		n += field.padded(f, len(fields) > 1)
	}
	return n
}

// Len is the length of the field in bytes in a table of family f.
func (d Field) Len(f Family) int {
	switch d {
	case FieldAddr:
		return AddrLen(f)
	case FieldProtocol:
		return 1
	case FieldPort:
		return 2
	default:
		return 4
	}
}

func (d Field) padded(f Family, concatenated bool) int {
	n := d.Len(f)
	if concatenated {
		n = (n + 3) &^ 3
	}
	return n
}

// IsMap reports whether the elements of the set have data or a verdict.
func (s *Set) IsMap() bool { return s.Verdicts || len(s.Data) > 0 }

// Noun is what nft calls the set.
func (s *Set) Noun() string {
	if s.IsMap() {
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
	if s.DeclaredByExpression() {
		word, name = "typeof ", s.expression
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

// expression is a field as typeof declares it.
func (s *Set) expression(d Field, f Family) string {
	switch d {
	case FieldAddr:
		return Destination.text(f)
	case FieldProtocol:
		return Protocol.text(f)
	case FieldPort:
		return portText(Port, s.Protocol, f)
	}
	return RandomIndex(IndexModulus).text(f)
}

// elementsPerLine is how many elements nft prints in a line, which depends on the type of the key.
// Source: calculate_delim in nftables' expression.c.
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

// IndexModulus stands in the declaration of an index; it limits nothing.
const IndexModulus = 65536

// DeclaredByExpression reports whether nft declares the set with typeof, as it must for an index:
// no named type is one.
func (s *Set) DeclaredByExpression() bool { return slices.Contains(s.Key, FieldIndex) }

// Ranges is how the kernel takes the elements of a set of ranges.
type Ranges uint8

// The ways to write a range.
const (
	NoRanges  Ranges = iota
	TwoKeys          // one element with the first and the last key
	TwoPoints        // two elements: the beginning of the range and of the gap behind it
)

// Ranges says how the set's ranges are written.
func (s *Set) Ranges() Ranges {
	switch {
	case !s.Interval:
		return NoRanges
	case len(s.Key) > 1:
		return TwoKeys
	}
	return TwoPoints
}
