package config

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// An Error is an invalid setting.
type Error struct {
	Setting string // the flag, or the file and the field
	Value   string // as given; empty if it does not help
	Reason  string // what is expected
}

// Error returns one line: the setting, its value and what is expected.
func (e *Error) Error() string {
	setting := brief(e.Setting)
	if e.Value != "" {
		setting += " " + brief(e.Value)
	}
	return setting + ": " + brief(e.Reason)
}

// A UsageError is an invalid command line. The caller that reports it adds which command's help says more.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }

// Usagef returns a UsageError.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// longest is about how many bytes of foreign text a log line shows.
const longest = 200

// brief makes a text fit for a log line: it escapes unprintable characters as Go does, and cuts a
// long text.
func brief(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
		if b.Len() > longest {
			return b.String() + "…"
		}
	}
	return b.String()
}
