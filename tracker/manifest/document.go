package manifest

import (
	"bytes"
)

// utf8Mark is the byte order mark that some editors put first.
var utf8Mark = []byte("\xef\xbb\xbf")

// A document is one of the documents of a file.
type document struct {
	text  []byte // not empty
	start int    // line at which text begins, from 1
	line  int    // line of the first content, which is neither blank nor comment
}

// split cuts a stream of YAML documents at its markers, --- and ..., and leaves out documents
// without content.
func split(content []byte) []document {
	var documents []document
	content = bytes.TrimPrefix(content, utf8Mark)
	current, number := document{start: 1}, 0
	begin, offset := 0, 0
	finish := func(end int) {
		if current.text = content[begin:end]; current.line != 0 {
			documents = append(documents, current)
		}
	}
	for line := range bytes.Lines(content) {
		number++
		if marker := markerLength(line); marker > 0 {
			finish(offset)
			begin, current = offset+marker, document{start: number}
			line = line[marker:]
			offset += marker
		}
		if current.line == 0 && hasContent(line) {
			current.line = number
		}
		offset += len(line)
	}
	finish(len(content))
	return documents
}

// markerLength returns the length of the marker at the beginning of line, or 0.
func markerLength(line []byte) int {
	if !bytes.HasPrefix(line, []byte("---")) && !bytes.HasPrefix(line, []byte("...")) {
		return 0
	}
	if len(line) > 3 && !bytes.ContainsRune([]byte(" \t\r\n"), rune(line[3])) {
		return 0
	}
	return 3
}

// hasContent reports whether a line is more than a blank, a comment or a directive.
func hasContent(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) > 0 && line[0] != '#' && line[0] != '%'
}

// A lineCounter turns offsets, in ascending order, into line numbers.
type lineCounter struct {
	content []byte
	offset  int
	lines   int
}

// at returns the line number of offset, counted from 1.
func (c *lineCounter) at(offset int) int {
	c.lines += bytes.Count(c.content[c.offset:offset], []byte("\n"))
	c.offset = offset
	return c.lines + 1
}
