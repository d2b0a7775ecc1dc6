// Package inspect has the commands that change nothing. Add Commands to the root command. They show what the kernel
// holds, what a sync would write, the state of the daemon, the way of a connection.
package inspect

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
)

// Commands returns the commands; reader has the flags of the daemon.
func Commands(reader *config.Reader) []*cobra.Command {
	return []*cobra.Command{newDiff(reader), newStatus(), newReady(), NewGet(reader), newExplain(reader), NewTrace(),
		NewTop(), NewFlows(), newFacts()}
}

// inputFlag ends a command with its standard input. kubectl kube-nft sets the flag: when its terminal ends, kubectl
// exec leaves the process in the pod, and closes its input.
const inputFlag = "until-input-ends"

// addUntilInputEnds declares inputFlag.
func addUntilInputEnds(cmd *cobra.Command) {
	cmd.Flags().Bool(inputFlag, false, "end when the standard input does, for kubectl kube-nft "+cmd.Name())
	_ = cmd.Flags().MarkHidden(inputFlag) // it is declared above
}

// untilInputEnds returns the context of a command, which ends with the standard input if inputFlag is set.
func untilInputEnds(cmd *cobra.Command) context.Context {
	if on, err := cmd.Flags().GetBool(inputFlag); err != nil || !on {
		return cmd.Context()
	}
	ctx, stop := context.WithCancel(cmd.Context())
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, cmd.InOrStdin()) // an input that fails has ended as well
	}()
	return ctx
}
