package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/sync/retry"
)

const (
	// watchInterval is the pause between two looks: at the number of the latest commit, which is one
	// message, and at the tables if there was one.
	watchInterval = 200 * time.Millisecond
	// entriesInterval is the pause between two looks at what packets change without a commit.
	entriesInterval = time.Second
)

// follow prints a list, and then a line for each row that comes or goes, until the command is
// interrupted.
func (s *selection) follow(cmd *cobra.Command, i *inspection,
	list func(*cobra.Command, *selection, *inspection) error) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	rows := func() ([]string, error) {
		var text bytes.Buffer
		quiet := *cmd // the list of nothing is no line here
		quiet.SetOut(&text)
		quiet.SetErr(io.Discard)
		if err := list(&quiet, s, i); err != nil {
			return nil, err
		}
		return strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n"), nil
	}
	have, err := rows()
	if err != nil {
		return TroubleError{err}
	}
	fmt.Fprintln(out, strings.Join(have, "\n"))
	for looked := time.Now(); retry.Pause(ctx, watchInterval); {
		changed, err := i.readIfChanged(ctx)
		if err == nil && !changed && cmd.Name() == "affinity" && time.Since(looked) >= entriesInterval {
			changed, err = true, i.read(ctx)
		}
		if err == nil && changed {
			looked = time.Now()
			var now []string
			if now, err = rows(); err == nil {
				writeChanges(out, have, now)
				have = now
			}
		}
		switch {
		case errors.Is(err, context.Canceled) || ctx.Err() != nil:
			return nil
		case err != nil:
			return TroubleError{err}
		}
	}
	return nil
}

// writeChanges writes the lines that only one of two lists has: with - those that went, with + those that
// came. Lines that differ in the width of their columns alone are the same.
func writeChanges(w io.Writer, before, after []string) {
	cells := func(line string) string { return strings.Join(strings.Fields(line), " ") }
	for _, change := range []struct {
		sign    string
		of, not []string
	}{{"-", before, after}, {"+", after, before}} {
		others := make(map[string]bool, len(change.not))
		for _, line := range change.not {
			others[cells(line)] = true
		}
		for _, line := range change.of {
			if line != "" && !others[cells(line)] {
				fmt.Fprintln(w, change.sign+" "+line)
			}
		}
	}
}
