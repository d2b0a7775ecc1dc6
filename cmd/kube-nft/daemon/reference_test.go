package daemon

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// metricsTable is the table of metrics that the reference has to have.
func metricsTable(found map[string]*metric) string {
	var names []string
	for name := range found {
		if isDocumented(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	table := "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n"
	for _, name := range names {
		m := found[name]
		table += fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, m.kind, strings.Join(m.labels, ", "), m.help)
	}
	return table
}

var update = flag.Bool("update", false, "rewrite the table of metrics in docs/reference.md")

// TestMetricsAreDocumented compares the table of metrics in docs/reference.md with a scrape.
func TestMetricsAreDocumented(t *testing.T) {
	const path, begin, end = "../../../docs/reference.md", "<!-- metrics: make golden rewrites this table -->\n",
		"<!-- end of metrics -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), begin)
	have, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no table of metrics", path)
	}
	metrics := scrape(t, "/metrics")
	maps.Copy(metrics, scrape(t, "/metrics/slis"))
	want := "\n" + metricsTable(metrics) + "\n"
	switch {
	case have == want:
	case *update:
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("make golden accepts this (-have +want):\n%s", cmp.Diff(have, want))
	}
}
