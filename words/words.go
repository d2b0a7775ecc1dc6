// Package words makes parts of sentences for people: numbers with their nouns, and lists.
package words

import (
	"fmt"
	"strings"
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
