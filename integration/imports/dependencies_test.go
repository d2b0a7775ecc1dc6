package imports

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// dependencyRow matches the first column of the table of direct dependencies.
var dependencyRow = regexp.MustCompile("(?m)^\\| ((?:`[^`]+`(?:, )?)+) \\| .+ \\|$")

// TestDependencies: CONTRIBUTING.md says of each direct dependency what it is for, and names
// none that is not one.
func TestDependencies(t *testing.T) {
	_, section, found := strings.Cut(readFile(t, "CONTRIBUTING.md"), "\nDirect dependencies:\n\n")
	table, _, closed := strings.Cut(section, "\n\n")
	if !found || !closed {
		t.Fatal("CONTRIBUTING.md has no table of direct dependencies")
	}
	listed := make(map[string]bool)
	for _, row := range dependencyRow.FindAllStringSubmatch(table, -1) {
		for _, name := range strings.Split(row[1], ", ") {
			listed[strings.Trim(name, "`")] = true
		}
	}
	for _, module := range directDependencies(t) {
		short := strings.TrimPrefix(module, "github.com/")
		if !listed[short] {
			t.Errorf("CONTRIBUTING.md does not say what %s is for", short)
		}
		delete(listed, short)
	}
	for name := range listed {
		t.Errorf("CONTRIBUTING.md lists %s, which go.mod does not require directly", name)
	}
}

// requirement matches a module in go.mod, not marked as indirect.
var requirement = regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+/\S+) v\S+$`)

// directDependencies lists the modules that go.mod requires directly.
func directDependencies(t *testing.T) (modules []string) {
	t.Helper()
	for _, line := range requirement.FindAllStringSubmatch(readFile(t, "go.mod"), -1) {
		modules = append(modules, line[1])
	}
	if len(modules) == 0 {
		t.Fatal("go.mod requires nothing")
	}
	return modules
}

// readFile returns the text of a file of the repository.
func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(lab.Path(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
