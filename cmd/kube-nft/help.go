package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Every command accepts the flags of the root command, so that a command line of the daemon works
// with any command. Help shows the flags that matter to the command.

// statusSettings say where the daemon listens.
var statusSettings = []string{"config", "bind-address", "healthz-bind-address", "metrics-bind-address"}

// daemonSettings matter while the daemon runs, but not to what it programs.
var daemonSettings = []string{
	"healthz-bind-address", "metrics-bind-address", "bind-address-hard-fail", "profiling", "oom-score-adj",
	"sync-period", "min-sync-period", "takeover", "table-ownership",
}

// setHelp makes help of root and its commands fit a terminal and hide flags that do not matter.
func setHelp(root *cobra.Command) {
	root.SetUsageFunc(writeUsage)
	show := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		matters := func(string) bool { return cmd == root }
		switch strings.TrimPrefix(cmd.CommandPath(), root.Name()+" ") {
		case "status":
			matters = func(name string) bool { return slices.Contains(statusSettings, name) }
		case "diff", "explain":
			matters = func(name string) bool { return matterToRules(name) && name != "host-proc" }
		case "migrate plan", "migrate apply":
			matters = matterToRules
		}
		root.PersistentFlags().VisitAll(func(f *pflag.Flag) { f.Hidden = f.Hidden || !matters(f.Name) })
		show(cmd, args)
	})
}

// matterToRules reports whether a setting changes what is programmed, or where that is looked up.
func matterToRules(name string) bool {
	return !slices.Contains(daemonSettings, name) && !strings.HasPrefix(name, "conntrack-")
}

// helpWidth is the width of flag descriptions.
const helpWidth = 100

// writeUsage prints cobra's usage in lines that fit. It uses no template: templates make the linker
// keep every method in the program, 20 MB of them.
func writeUsage(cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:")
	if cmd.Runnable() {
		fmt.Fprintf(&b, "\n  %s", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n  %s [command]\n\nAvailable Commands:", cmd.CommandPath())
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() || c.Name() == "help" {
				fmt.Fprintf(&b, "\n  %-*s %s", c.NamePadding(), c.Name(), c.Short)
			}
		}
	}
	if cmd.HasAvailableLocalFlags() {
		b.WriteString("\n\nFlags:\n" + wrapped(cmd.LocalFlags()))
	}
	if cmd.HasAvailableInheritedFlags() {
		b.WriteString("\n\nGlobal Flags:\n" + wrapped(cmd.InheritedFlags()))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\nUse %q for more information about a command.", cmd.CommandPath()+" [command] --help")
	}
	_, err := fmt.Fprintln(cmd.OutOrStderr(), b.String())
	return err
}

func wrapped(flags *pflag.FlagSet) string {
	return strings.TrimRight(flags.FlagUsagesWrapped(helpWidth), " \n")
}
