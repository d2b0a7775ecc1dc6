package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// offered lists the flags that help offers, but for --help.
func offered(help string) (flags []string) {
	for _, match := range regexp.MustCompile(`(?m)^ {2,6}(?:-\w, )?--([a-z-]+)`).FindAllStringSubmatch(help, -1) {
		if match[1] != "help" {
			flags = append(flags, match[1])
		}
	}
	slices.Sort(flags)
	return flags
}

// TestHelpOffersWhatMatters: commands do not list the daemon's flags that they do not use.
func TestHelpOffersWhatMatters(t *testing.T) {
	for command, want := range map[string]string{
		"version":          "output",
		"migrate":          "",
		"cleanup":          "timeout",
		"migrate rollback": "timeout wait",
		"get services": "all-namespaces config family kubeconfig manifests master namespace output selector sort-by " +
			"watch",
		"status": "output",
	} {
		_, help, _ := commandLine(t, append(strings.Fields(command), "--help")...)
		if got := strings.Join(offered(help), " "); got != want || help == "" {
			t.Errorf("%s: offers %q, want %q", command, got, want)
		}
	}
}

// TestHelpOfWhatReadsTheSource: what decides about rules is offered, what is the daemon's is not.
func TestHelpOfWhatReadsTheSource(t *testing.T) {
	for _, command := range []string{"diff", "explain", "migrate plan", "migrate apply"} {
		_, help, _ := commandLine(t, append(strings.Fields(command), "--help")...)
		flags := offered(help)
		for _, flag := range []string{"config", "manifests", "kubeconfig", "hostname-override", "cluster-cidr",
			"nodeport-addresses"} {
			if !slices.Contains(flags, flag) {
				t.Errorf("%s: --%s is not offered", command, flag)
			}
		}
		for _, flag := range []string{"oom-score-adj", "conntrack-min", "healthz-bind-address", "takeover"} {
			if slices.Contains(flags, flag) {
				t.Errorf("%s: --%s is offered", command, flag)
			}
		}
	}
}

// TestHelpWidth: help fits a terminal, and so do the flags of the daemon.
func TestHelpWidth(t *testing.T) {
	for _, command := range []string{"", "status", "explain", "get", "migrate apply", "migrate rollback"} {
		_, help, _ := commandLine(t, append(strings.Fields(command), "--help")...)
		checkWidth(t, help)
	}
	_, help, _ := commandLine(t, "--help")
	if !slices.Contains(offered(help), "conntrack-min") {
		t.Error("the daemon's help lacks its flags")
	}
}

// TestHelpKeepsDescriptionsTogether: the whole description of each flag stands beside it, wherever its lines break.
func TestHelpKeepsDescriptionsTogether(t *testing.T) {
	squeeze := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	_, help, _ := commandLine(t, "--help")
	text := squeeze(help)
	newRoot().PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		_, usage := pflag.UnquoteUsage(f)
		if !strings.Contains(text, squeeze(usage)) {
			t.Errorf("--%s: help has not %q in one piece", f.Name, usage)
		}
	})
}

// TestHelpHasExamples: every help text has examples that parse, and the daemon's flags stand by subject.
func TestHelpHasExamples(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Name() == "help" || cmd.Name() == "completion" || cmd.Parent() != nil && cmd.Parent().Name() == "completion" {
			return
		}
		path := strings.Fields(cmd.CommandPath())[1:]
		_, help, _ := commandLine(t, append(path, "--help")...)
		_, rest, found := strings.Cut(help, "\nExamples:\n")
		if !found {
			t.Errorf("%s: no examples in\n%s", cmd.CommandPath(), help)
		}
		examples, _, _ := strings.Cut(rest, "\n\n")
		for line := range strings.Lines(examples) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "  ")
			line, _, _ = strings.Cut(line, " | ")
			args := strings.Fields(line)
			target, left, err := newRoot().Find(args[1:])
			if args[0] != "kube-nft" || err != nil || target.ParseFlags(left) != nil {
				t.Errorf("%s: example %q: %v", cmd.CommandPath(), line, err)
			}
		}
		for _, below := range cmd.Commands() {
			walk(below)
		}
	}
	walk(newRoot())
	_, help, _ := commandLine(t, "--help")
	for _, group := range flagGroups {
		if !strings.Contains(help, "\n\n"+group.title+":\n  ") {
			t.Errorf("the daemon's help has no flags about %s", group.title)
		}
	}
}

// TestEveryFlagHasAGroup: the daemon's help lists each of its flags in a group, and only -h under "Flags".
func TestEveryFlagHasAGroup(t *testing.T) {
	_, help, _ := commandLine(t, "--help")
	_, rest, found := strings.Cut(help, "\nFlags:\n")
	list, _, _ := strings.Cut(rest, "\n\n")
	if !found || strings.Count(list, " --") != 1 || !strings.Contains(list, "-h, --help ") {
		t.Errorf("flags without a group:\n%s", list)
	}
}
