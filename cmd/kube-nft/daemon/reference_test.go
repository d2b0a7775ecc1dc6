package daemon

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
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

func TestMetricsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## Metrics\n")
	if !found {
		t.Fatal("docs/reference.md has no section Metrics")
	}
	metrics := scrape(t, "/metrics")
	maps.Copy(metrics, scrape(t, "/metrics/slis"))
	table := metricsTable(metrics)
	if !strings.Contains(section, table) {
		t.Errorf("the section Metrics of docs/reference.md has to contain this table:\n%s", table)
	}
}
