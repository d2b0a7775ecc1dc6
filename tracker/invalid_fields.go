package tracker

import (
	"errors"
	"fmt"
	"strconv"
)

const (
	// maxInvalid bounds what one object can write into logs and events.
	maxInvalid = 16
	// maxQuoted bounds how much of a refused value is repeated, in bytes.
	maxQuoted = 64
)

// invalidFields collects what could not be used of one object.
type invalidFields struct {
	kind, namespace, name, uid string
	list                       []error
	left                       int // those beyond maxInvalid
}

// add refuses field for the reason in format and args.
func (r *invalidFields) add(field, format string, args ...any) {
	if len(r.list) == maxInvalid {
		r.left++
		return
	}
	r.list = append(r.list, r.invalid(field, fmt.Sprintf(format, args...)))
}

func (r *invalidFields) invalid(field, reason string) error {
	return &InvalidField{Kind: r.kind, Namespace: printable(r.namespace), Name: printable(r.name), UID: r.uid,
		Field: field, Reason: reason}
}

// err returns all of them joined, nil if there are none.
func (r *invalidFields) err() error {
	if r.left > 0 {
		r.list = append(r.list, r.invalid("object", fmt.Sprintf("%d more values were refused", r.left)))
	}
	return errors.Join(r.list...)
}

// quote returns s for a reason: quoted, without control characters, cut to maxQuoted bytes.
func quote(s string) string {
	if len(s) > maxQuoted {
		return strconv.QuoteToASCII(s[:maxQuoted]) + "..."
	}
	return strconv.QuoteToASCII(s)
}

// printable returns s itself if a log line can hold it, else quoted.
func printable(s string) string {
	if q := quote(s); len(q) != len(s)+2 {
		return q
	}
	return s
}
