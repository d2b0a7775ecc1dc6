package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"
)

// A usageError is a command line that cannot be meant: exit code 2.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() + "; kube-nft --help lists the flags" }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// plainly says in plain words what a flag takes instead of the value that it was given.
func plainly(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	expected, known := map[string]string{
		"bool":     "true or false",
		"int32":    "a whole number, -2147483648 to 2147483647",
		"uint32":   "a whole number, 0 to 4294967295",
		"float32":  "a number",
		"duration": "a duration such as 30s, 5m or 1h",
	}[invalid.GetFlag().Value.Type()]
	if !known {
		return err
	}
	return fmt.Errorf("--%s %s: expected %s", invalid.GetFlag().Name, invalid.GetValue(), expected)
}

// withoutArrows makes an argument of two characters, as in SRC -> ADDR, one that is not taken
// for a flag.
func withoutArrows(args []string) []string {
	args = slices.Clone(args)
	for i := range args {
		if args[i] == "->" {
			args[i] = "→"
		}
	}
	return args
}
