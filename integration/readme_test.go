package integration

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const readmePath = "../README.md"

// Markers around the table of flags.
const (
	flagsBegin = "<!-- flags: make golden rewrites this table -->\n"
	flagsEnd   = "<!-- end of flags -->\n"
)

// readme returns the README.
func readme(t *testing.T) string {
	t.Helper()
	return string(readFile(t, readmePath))
}

// output runs kube-nft and returns its standard output.
func output(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(buildProxy(t), args...).Output()
	if err != nil {
		t.Fatalf("kube-nft %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// TestGoldenReadmeFlags compares the table of flags with the program's help.
func TestGoldenReadmeFlags(t *testing.T) {
	text := readme(t)
	before, rest, found := strings.Cut(text, flagsBegin)
	have, after, closed := strings.Cut(rest, flagsEnd)
	if !found || !closed {
		t.Fatal("the markers around the table of flags are missing")
	}
	want := flagTable(t, output(t, "--help"))
	diff := cmp.Diff(strings.Split(have, "\n"), strings.Split(want, "\n"))
	if diff == "" {
		return
	}
	if !*update {
		t.Errorf("go test ./integration -run Golden -update accepts this (-want +got):\n%s", diff)
		return
	}
	if err := os.WriteFile(readmePath, []byte(before+flagsBegin+want+flagsEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// helpLine matches a flag in the output of --help: its name, type and text.
var helpLine = regexp.MustCompile(`^ +(?:-\w, )?--([\w-]+)(?: (\w+))? {2,}(.*)$`)

// defaultValue matches the default at the end of a flag's text.
var defaultValue = regexp.MustCompile(`^(.*) \(default (.*)\)$`)

// flagTable returns the flags of a --help text as a table in Markdown.
func flagTable(t *testing.T, help string) string {
	t.Helper()
	var table strings.Builder
	table.WriteString("\n| flag | default | |\n|---|---|---|\n")
	rows := 0
	for _, line := range strings.Split(help, "\n") {
		match := helpLine.FindStringSubmatch(line)
		if match == nil || match[1] == "help" {
			continue
		}
		text, value := match[3], ""
		if split := defaultValue.FindStringSubmatch(text); split != nil {
			text, value = split[1], "`"+strings.Trim(split[2], `"`)+"`"
		}
		fmt.Fprintf(&table, "| `--%s` | %s | %s |\n", match[1], value, strings.ReplaceAll(text, "|", `\|`))
		rows++
	}
	if rows == 0 {
		t.Fatalf("no flags found in:\n%s", help)
	}
	table.WriteString("\n")
	return table.String()
}

// TestReadmeRuleset looks for every line of the excerpt in the dry run, in order.
func TestReadmeRuleset(t *testing.T) {
	_, rest, _ := strings.Cut(readme(t), "```nft\n")
	excerpt, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("the README has no excerpt of a ruleset")
	}
	ruleset := strings.Split(output(t, "--manifests", "../deploy/examples", "--hostname-override", "node-a", "--dry-run"), "\n")
	for _, line := range strings.Split(strings.TrimSpace(excerpt), "\n") {
		if line == "..." {
			continue
		}
		for len(ruleset) > 0 && ruleset[0] != line {
			ruleset = ruleset[1:]
		}
		if len(ruleset) == 0 {
			t.Fatalf("the dry run does not have this line, or not in this place:\n%s", line)
		}
	}
}
