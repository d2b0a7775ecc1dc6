//go:build man

package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// init adds the command that make install and make release write man pages with. The program that
// runs on nodes is built without it.
func init() {
	extraCommands = append(extraCommands, func() *cobra.Command {
		var date int64
		manual := &cobra.Command{
			Use:    "man DIR",
			Short:  "Write the man pages of all commands to a directory",
			Args:   cobra.ExactArgs(1),
			Hidden: true,
			RunE: func(cmd *cobra.Command, args []string) error {
				day := time.Unix(date, 0).UTC()
				for _, root := range []*cobra.Command{cmd.Root(), newPlugin()} {
					root.DisableAutoGenTag = true
					err := doc.GenManTree(root,
						&doc.GenManHeader{Section: "8", Source: "kube-nft", Manual: "kube-nft", Date: &day}, args[0])
					if err != nil {
						return err
					}
				}
				return nil
			},
		}
		manual.Flags().Int64Var(&date, "date", 0, "date of the pages, in seconds since the epoch")
		return manual
	})
}
