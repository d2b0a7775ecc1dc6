// Package words makes parts of sentences for people: numbers with their nouns, lists, errors; and breaks lines.
package words

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"
)

// Plural returns a number with its noun, as in "1 rule" and "2 rules".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Some names the first ones of a list, at most so many, and counts the rest: "a, b, and 3 more".
func Some[T any](list []T, most int, separator string) string {
	var names []string
	for _, x := range list[:min(len(list), most)] {
		names = append(names, fmt.Sprint(x))
	}
	if more := len(list) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, separator)
}

// Strings returns the texts of a list.
func Strings[T fmt.Stringer](list []T) (texts []string) {
	for _, x := range list {
		texts = append(texts, x.String())
	}
	return texts
}

// OneLine returns the text of an error without line breaks.
func OneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// Cause returns what an error about a file says besides the operation and the path: for texts that name the file.
func Cause(err error) error {
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return failed.Err
	}
	return err
}

// Wrap breaks text between words at a width, indents lines after the first, and ends the last one. Longer words stay
// whole.
func Wrap(text string, width int, indent string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i > 0 && column+1+n > width:
			b.WriteString("\n" + indent)
			column = 0
		case i > 0:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String() + "\n"
}
