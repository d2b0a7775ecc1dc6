package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The flags of the root command are understood everywhere, so that a command line of the daemon
// can be given to any command. Help offers those that matter to the command.

// setHelp makes help of root and its commands fit a terminal and leave out what does not matter.
func setHelp(root *cobra.Command) {
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages |", "FlagUsagesWrapped 100 |"))
	show := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if cmd != root {
			hideSettings(root.PersistentFlags(), settingsOf(cmd))
		}
		show(cmd, args)
	})
}

func hideSettings(flags *pflag.FlagSet, matters func(name string) bool) {
	flags.VisitAll(func(f *pflag.Flag) { f.Hidden = f.Hidden || !matters(f.Name) })
}

// statusSettings say where the daemon listens.
var statusSettings = []string{"config", "bind-address", "healthz-bind-address", "metrics-bind-address"}

// daemonSettings matter while the daemon runs, not to what it programs.
var daemonSettings = []string{
	"healthz-bind-address", "metrics-bind-address", "bind-address-hard-fail", "profiling", "oom-score-adj",
	"sync-period", "min-sync-period", "config-sync-period", "takeover", "table-ownership",
}

// settingsOf returns which settings matter to a command.
func settingsOf(cmd *cobra.Command) (matters func(name string) bool) {
	switch strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ") {
	case "status":
		return func(name string) bool { return slices.Contains(statusSettings, name) }
	case "diff", "explain", "migrate plan", "migrate apply":
		return func(name string) bool {
			return !slices.Contains(daemonSettings, name) && !strings.HasPrefix(name, "conntrack-")
		}
	}
	return func(string) bool { return false }
}
