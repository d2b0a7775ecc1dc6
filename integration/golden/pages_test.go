package golden

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A section is a part of a page that is made from what the program prints.
type section struct{ page, begin, end string }

var (
	flagSection = section{"../../docs/reference.md", "<!-- flags: make golden rewrites this table -->\n",
		"<!-- end of flags -->\n"}
	rulesetSection = section{"../../docs/ruleset.md", "```nft\n", "```\n"}
	inspectSection = section{"../../docs/operations.md", "```\n$ kube-nft get services -n shop\n", "```\n"}
)

// check compares the section with what it should be, or rewrites it.
func (s section) check(t *testing.T, want string) {
	t.Helper()
	content, err := os.ReadFile(s.page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	before, rest, found := strings.Cut(text, s.begin)
	have, after, closed := strings.Cut(rest, s.end)
	if !found || !closed {
		t.Fatalf("%s has no section from %q to %q", s.page, s.begin, s.end)
	}
	diff := cmp.Diff(strings.Split(have, "\n"), strings.Split(want, "\n"))
	if diff == "" {
		return
	}
	if !*update {
		t.Errorf("make golden accepts this (-want +got):\n%s", diff)
		return
	}
	if err := os.WriteFile(s.page, []byte(before+s.begin+want+s.end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// output runs kube-nft and returns its standard output.
func output(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(lab.Program(t), args...).Output()
	if err != nil {
		t.Fatalf("kube-nft %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// TestGoldenPageFlags compares the table of flags with the program's help.
func TestGoldenPageFlags(t *testing.T) {
	flagSection.check(t, flagTable(t, output(t, "--help")))
}

// TestGoldenPageRuleset compares the excerpt of a ruleset with a dry run.
func TestGoldenPageRuleset(t *testing.T) {
	ruleset := output(t, "--manifests", "../../deploy/examples", "--hostname-override", "node-a",
		"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/64", "--dry-run")
	rulesetSection.check(t, excerpt(t, ruleset))
}

// TestGoldenPageInspection compares what the page on operations shows of get and explain with what they print
// where the Services of the examples are programmed.
func TestGoldenPageInspection(t *testing.T) {
	lab.New(t)
	if err := lab.Forward(); err != nil { // else explain says so
		t.Fatal(err)
	}
	ruleset := output(t, "--manifests", "../../deploy/examples", "--hostname-override", "node-a",
		"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/64", "--dry-run")
	lab.Run(t, ruleset, "nft", "-f", "-")
	lines := strings.SplitAfter(output(t, "get", "services", "-n", "shop"), "\n")
	explain := []string{"explain", "203.0.113.7", "198.51.100.9:7777/udp"}
	inspectSection.check(t, strings.Join(lines[:min(6, len(lines))], "")+"...\n$ kube-nft "+strings.Join(explain, " ")+
		"\n"+output(t, explain...))
}

// helpLine matches a flag in the output of --help: its name, type and text.
var helpLine = regexp.MustCompile(`^ +(?:-\w, )?--([\w-]+)(?: (\w+)(?:\[=\w+\])?)? {2,}(.*)$`)

// wrapped matches the break of a text that does not fit into a line.
var wrapped = regexp.MustCompile(`\n {20,}`)

// defaultValue matches the default at the end of a flag's text.
var defaultValue = regexp.MustCompile(`^(.*) \(default (.*)\)$`)

// flagTable returns the flags of a --help text as a table in Markdown.
func flagTable(t *testing.T, help string) string {
	t.Helper()
	rows := make(map[string]string)
	for _, line := range strings.Split(wrapped.ReplaceAllString(help, " "), "\n") {
		match := helpLine.FindStringSubmatch(line)
		if match == nil || match[1] == "help" {
			continue
		}
		text, value := match[3], ""
		if split := defaultValue.FindStringSubmatch(text); split != nil {
			text, value = split[1], "`"+strings.Trim(split[2], `"`)+"`"
		}
		rows[match[1]] = fmt.Sprintf("| `--%s` | %s | %s |\n", match[1], value, strings.ReplaceAll(text, "|", `\|`))
	}
	if len(rows) == 0 {
		t.Fatalf("no flags found in:\n%s", help)
	}
	table := "\n| flag | default | |\n|---|---|---|\n"
	for _, name := range slices.Sorted(maps.Keys(rows)) { // help has them by subject
		table += rows[name]
	}
	return table + "\n"
}

// policyOf matches the policy of Service shop/web in the map services.
var policyOf = regexp.MustCompile(`"shop/web:http" : goto ([\w-]+)`)

// excerpt shows how the cluster IP of Service shop/web is served: what is in the maps for it
// and for one without endpoints, the chains that its packets meet, and the base chain.
func excerpt(t *testing.T, ruleset string) string {
	t.Helper()
	const table = "table ip kube-nft {\n"
	find := func(name string) string {
		for _, b := range blocks(ruleset) {
			if b.table == table && b.head == "\t"+name+" {\n" {
				return b.text
			}
		}
		t.Fatalf("no %s in:\n%s", name, ruleset)
		return ""
	}
	services := find("map services")
	policy := policyOf.FindStringSubmatch(services)
	if policy == nil {
		t.Fatalf("no policy of shop/web in:\n%s", services)
	}
	chain := find("chain " + policy[1])
	pick := strings.Fields(chain[strings.LastIndex(chain, "goto "):])[1]
	return table + strings.Join([]string{
		elements(services, "10.96.0.80 ", "10.96.0.99 "),
		elements(find("map endpoints-tcp"), "10.96.0.80 "),
		chain,
		find("chain " + pick),
		find("chain services"),
		find("chain nat-prerouting"),
	}, "\n") + "}\n"
}

// elements leaves only those elements of a map that begin with one of the keys, and dots for
// the others.
func elements(text string, keys ...string) string {
	const begin, between, end = "elements = { ", ",\n\t\t\t     ", " }\n\t}"
	head, rest, _ := strings.Cut(text, begin)
	list, tail, _ := strings.Cut(rest, end)
	var kept []string
	for _, element := range strings.Split(list, between) {
		isKey := func(key string) bool { return strings.HasPrefix(element, key) }
		switch {
		case slices.ContainsFunc(keys, isKey):
			kept = append(kept, element)
		case len(kept) == 0 || kept[len(kept)-1] != "...":
			kept = append(kept, "...")
		}
	}
	return head + begin + strings.Join(kept, between) + end + tail
}
