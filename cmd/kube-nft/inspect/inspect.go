// Package inspect has the commands that change nothing. Add Commands to the root command. They show what the kernel
// holds, what a sync would write, the state of the daemon, the way of a connection.
package inspect

import (
	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
)

// Commands returns the commands; reader has the flags of the daemon.
func Commands(reader *config.Reader) []*cobra.Command {
	return []*cobra.Command{newDiff(reader), newStatus(), newReady(), newGet(), newExplain(reader), newTrace(), newTop(),
		newFlows()}
}
