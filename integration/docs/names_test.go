package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

var (
	// fileName matches a Go file of a package, as the pages for contributors name it.
	fileName = regexp.MustCompile("`([a-z][a-z/-]*/[a-z_]+\\.go)`")
	// testName matches a test or a benchmark.
	testName = regexp.MustCompile("`((?:Test|Benchmark)[A-Z][A-Za-z0-9]*)`")
	// testFilter matches what -run selects, up to the first /.
	testFilter = regexp.MustCompile("-run '?(?:Test)?([A-Z][A-Za-z0-9]+)")
	// testFunction matches the definition of a test or a benchmark.
	testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
)

// TestNamedFilesAndTestsExist reads the pages for contributors. Each Go file and each test that a page names has to
// exist. Decisions that are superseded or withdrawn may name what has gone.
func TestNamedFilesAndTestsExist(t *testing.T) {
	tests := testFunctions(t)
	pages := append(glob(t, "docs/decisions/*.md"), lab.Path(t, "docs/architecture.md"), lab.Path(t, "CONTRIBUTING.md"))
	named := 0
	for _, page := range pages {
		text := readPage(t, page)
		if strings.Contains(text, "\nStatus: superseded") || strings.Contains(text, "\nStatus: withdrawn") {
			continue
		}
		for _, found := range fileName.FindAllStringSubmatch(text, -1) {
			named++
			if _, err := os.Stat(lab.Path(t, found[1])); err != nil {
				t.Errorf("%s names the file %s, which does not exist", filepath.Base(page), found[1])
			}
		}
		for _, found := range testName.FindAllStringSubmatch(text, -1) {
			named++
			if !slices.Contains(tests, found[1]) {
				t.Errorf("%s names the test %s, which does not exist", filepath.Base(page), found[1])
			}
		}
	}
	contributing := readPage(t, lab.Path(t, "CONTRIBUTING.md"))
	for _, found := range testFilter.FindAllStringSubmatch(contributing, -1) {
		if !slices.ContainsFunc(tests, func(name string) bool { return strings.Contains(name, found[1]) }) {
			t.Errorf("CONTRIBUTING.md runs %s, which selects no test", found[0])
		}
	}
	if named < 50 {
		t.Errorf("found %d names of files and tests, which are too few to be all", named)
	}
}

// TestDecisionsAreIndexed holds the index of decisions against the pages: each page is in it, with its status.
func TestDecisionsAreIndexed(t *testing.T) {
	index := readPage(t, lab.Path(t, "docs/decisions/README.md"))
	for _, page := range glob(t, "docs/decisions/[0-9]*.md") {
		_, rest, found := strings.Cut(readPage(t, page), "\nStatus: ")
		status, _, _ := strings.Cut(rest, "\n")
		if !found || !strings.Contains(index, "("+filepath.Base(page)+") | "+status+" |") {
			t.Errorf("docs/decisions/README.md lacks %s with status %q", filepath.Base(page), status)
		}
	}
}

// testFunctions are the names of all tests and benchmarks of the repository.
func testFunctions(t *testing.T) []string {
	t.Helper()
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range testFunction.FindAllSubmatch(text, -1) {
			names = append(names, string(found[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

var (
	// dependencyRow matches the first column of CONTRIBUTING.md's table of direct dependencies.
	dependencyRow = regexp.MustCompile("(?m)^\\| ((?:`[^`]+/[^`]+`(?:, )?)+) \\| .+ \\|$")
	// requirement matches a module in go.mod that is not marked as indirect.
	requirement = regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+/\S+) v\S+$`)
)

// TestDirectDependenciesAreExplained holds CONTRIBUTING.md's table of direct dependencies against go.mod.
func TestDirectDependenciesAreExplained(t *testing.T) {
	_, section, _ := strings.Cut(readPage(t, lab.Path(t, "CONTRIBUTING.md")), "\nDirect dependencies:\n\n")
	table, _, _ := strings.Cut(section, "\n\n")
	var explained, required []string
	for _, row := range dependencyRow.FindAllStringSubmatch(table, -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			explained = append(explained, strings.Trim(name, "`"))
		}
	}
	for _, line := range requirement.FindAllStringSubmatch(readPage(t, lab.Path(t, "go.mod")), -1) {
		required = append(required, strings.TrimPrefix(line[1], "github.com/"))
	}
	slices.Sort(explained)
	slices.Sort(required)
	if len(required) == 0 || !slices.Equal(explained, required) {
		t.Errorf("CONTRIBUTING.md explains %q, go.mod requires %q", explained, required)
	}
}
