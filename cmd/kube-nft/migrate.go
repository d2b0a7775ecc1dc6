package main

import (
	"github.com/spf13/cobra"
)

// newMigrate groups the commands that bring a node from kube-proxy to kube-nft and back.
func newMigrate(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Move this node from kube-proxy to kube-nft, or back",
		Long: `migrate looks at what kube-proxy has programmed on this node, in the legacy ip_tables,
in nf_tables by way of iptables-nft, in tables of its own or in IPVS, and moves the
node to kube-nft without a gap in service. It runs no iptables, nft or ipset program.

The daemon does what migrate apply does by itself when it starts, unless it is told
--takeover=never.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(newMigratePlan(o), newMigrateApply(o), newMigrateRollback())
	return c
}
