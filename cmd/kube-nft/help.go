package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Every command accepts the flags of the root command, so that a command line of the daemon works
// with any command. Help shows only the flags that affect the command.

// daemonSettings affect the running daemon, but not its rules.
var daemonSettings = []string{
	"healthz-bind-address", "metrics-bind-address", "bind-address-hard-fail", "profiling", "oom-score-adj",
	"sync-period", "min-sync-period", "takeover", "takeover-drain-timeout", "keep-kube-proxy-table",
	"table-ownership",
}

// sourceFlags say where a command reads objects. get needs them for --selector.
var sourceFlags = []string{"config", "manifests", "kubeconfig", "master"}

// setHelp hides flags without effect on a command in its help.
func setHelp(root *cobra.Command) {
	show := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		root.PersistentFlags().VisitAll(func(f *pflag.Flag) { f.Hidden = f.Hidden || !matters(cmd, f.Name) })
		show(cmd, args)
	})
}

// matters reports whether a flag that all commands of cmd's program have has an effect on cmd.
func matters(cmd *cobra.Command, name string) bool {
	program := cmd.Root().Name()
	if program != "kube-nft" || !cmd.HasParent() { // the plug-in's flags are for all its commands
		return true
	}
	switch strings.TrimPrefix(cmd.CommandPath(), program+" ") {
	case "diff", "explain":
		return matterToRules(name) && name != "host-proc"
	case "get services", "get endpoints", "get affinity":
		return slices.Contains(sourceFlags, name)
	case "migrate plan", "migrate apply":
		return matterToRules(name)
	}
	return false
}

// matterToRules reports whether a setting affects the rules, or where a command reads them.
func matterToRules(name string) bool {
	return !slices.Contains(daemonSettings, name) && !strings.HasPrefix(name, "conntrack-")
}

// commandGroups are the groups of commands in the help. Commands without a group come last.
var commandGroups = []struct{ id, title, commands string }{
	{"look", "Read the rules of this node:", "status ready get top explain trace flows diff facts"},
	{"move", "Change the rules of this node:", "migrate cleanup"},
}

// A flagGroup is flags that are about one subject.
type flagGroup struct{ title, flags string }

// flagGroups are all flags of the daemon.
var flagGroups = []flagGroup{
	{"Instead of serving", "dry-run show-config write-config-to init-only cleanup version"},
	{"Objects and settings",
		"config manifests kubeconfig master kube-api-qps kube-api-burst kube-api-content-type feature-gates"},
	{"The node and its pods",
		"hostname-override host-proc bind-address cluster-cidr detect-local-mode pod-bridge-interface " +
			"pod-interface-name-prefix"},
	{
		"Services",
		"service-cidr service-proxy-name external-ips nodeport-addresses localhost-nodeports source-ranges-for-node-ports " +
			"ping-vips eject-endpoints masquerade-all masquerade-bit affinity-size namespace-quota connection-counters " +
			"endpoint-connection-counters flow-metrics",
	},
	{"Writing to the kernel",
		"mode min-sync-period sync-period takeover takeover-drain-timeout keep-kube-proxy-table table-ownership " +
			"connections-of-departed oom-score-adj"},
	{"Addresses", "healthz-bind-address metrics-bind-address bind-address-hard-fail profiling"},
	{"Connection tracking", "conntrack-"},
	{"Log", "log-level log-format v logging-format"},
}

// has reports whether a flag belongs to the group. A name that ends with a hyphen means all flags that begin with it.
func (g *flagGroup) has(name string) bool {
	return slices.ContainsFunc(strings.Fields(g.flags), func(flag string) bool {
		return flag == name || strings.HasSuffix(flag, "-") && strings.HasPrefix(name, flag)
	})
}

// documentation is where users read more.
const documentation = "https://github.com/kube-nft/kube-nft/tree/main/docs"

// arrange gives the commands below root their groups.
func arrange(root *cobra.Command) {
	for _, g := range commandGroups {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, cmd := range root.Commands() {
			if slices.Contains(strings.Fields(g.commands), cmd.Name()) {
				cmd.GroupID = g.id
			}
		}
	}
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
		fmt.Fprintf(&b, "\n  %s [command]", cmd.CommandPath())
	}
	if cmd.HasExample() {
		b.WriteString("\n\nExamples:\n" + cmd.Example)
	}
	writeCommands(&b, cmd)
	writeFlags(&b, cmd)
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\nUse %q for more information about a command.", cmd.CommandPath()+" [command] --help")
		if !cmd.HasParent() {
			b.WriteString("\nDocumentation: " + documentation)
		}
	}
	_, err := fmt.Fprintln(cmd.OutOrStderr(), b.String())
	return err
}

// writeCommands lists the commands below one by their groups.
func writeCommands(b *strings.Builder, cmd *cobra.Command) {
	if !cmd.HasAvailableSubCommands() {
		return
	}
	groups := append([]*cobra.Group{}, cmd.Groups()...)
	rest := "Commands:"
	if len(groups) > 0 {
		rest = "Other commands:"
	}
	for _, group := range append(groups, &cobra.Group{Title: rest}) {
		fmt.Fprintf(b, "\n\n%s", group.Title)
		for _, c := range cmd.Commands() {
			if c.GroupID == group.ID && (c.IsAvailableCommand() || c.Name() == "help") {
				fmt.Fprintf(b, "\n  %-*s %s", c.NamePadding(), c.Name(), c.Short)
			}
		}
	}
}

// flagEntry matches the beginning of a flag in pflag's list of flags. Lines that go on with a description
// are indented deeper, and may begin with a flag's name, too.
var flagEntry = regexp.MustCompile(`(?m)^ {2}(?:-\w, | {4})--([\w-]+)`)

// writeFlags lists the flags of a command that help shows: its own, and then the daemon's by their
// groups, all in the same columns.
func writeFlags(b *strings.Builder, cmd *cobra.Command) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.AddFlagSet(cmd.LocalFlags())
	all.AddFlagSet(cmd.InheritedFlags())
	text := strings.TrimRight(all.FlagUsagesWrapped(helpWidth), " \n")
	found := flagEntry.FindAllStringSubmatchIndex(text, -1)
	entries := make(map[string][]string) // by title of the group
	for i, at := range found {
		end := len(text)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		name, title := text[at[2]:at[3]], "Flags"
		for j := range flagGroups {
			if cmd.Root().Name() == "kube-nft" && flagGroups[j].has(name) {
				title = flagGroups[j].title
			}
		}
		entries[title] = append(entries[title], strings.TrimRight(text[at[0]:end], " \n"))
	}
	for _, group := range append([]flagGroup{{title: "Flags"}}, flagGroups...) {
		if list := entries[group.title]; len(list) > 0 {
			fmt.Fprintf(b, "\n\n%s:\n%s", group.title, strings.Join(list, "\n"))
		}
	}
}
