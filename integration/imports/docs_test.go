package imports

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// What documents name: files of packages, and tests.
var (
	fileName = regexp.MustCompile("`([a-z][a-z/-]*/[a-z_]+\\.go)`")
	testName = regexp.MustCompile("`((?:Test|Benchmark)[A-Z][A-Za-z0-9]*)`")
)

// TestDocumentsName: the files and tests that the documents about the code name are there.
func TestDocumentsName(t *testing.T) {
	tests := make(map[string]bool)
	for _, file := range sources(t) {
		if strings.HasSuffix(file, "_test.go") {
			for _, found := range regexp.MustCompile(`(?m)^func (\w+)\(`).FindAllStringSubmatch(readFile(t, file), -1) {
				tests[found[1]] = true
			}
		}
	}
	for _, document := range []string{"CONTRIBUTING.md", "docs/architecture.md"} {
		text := readFile(t, document)
		for _, found := range fileName.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(lab.Path(t, found[1])); err != nil {
				t.Errorf("%s names %s, which is not there", document, found[1])
			}
		}
		for _, found := range testName.FindAllStringSubmatch(text, -1) {
			if !tests[found[1]] {
				t.Errorf("%s names %s, which is no test", document, found[1])
			}
		}
	}
}

// mostLines is how long a package may be without its tests; about 3,500 is the aim.
const mostLines = 3600

// TestSizes: a package that has grown beyond what one reads in a day gives something off.
func TestSizes(t *testing.T) {
	lines := make(map[string]int)
	for _, file := range sources(t) {
		if !strings.HasSuffix(file, "_test.go") {
			lines[filepath.Dir(file)] += bytes.Count([]byte(readFile(t, file)), []byte("\n"))
		}
	}
	for dir, n := range lines {
		if n > mostLines {
			t.Errorf("%s has %d lines without tests, %d at most: docs/architecture.md says where new code goes", dir, n, mostLines)
		}
	}
}

// sources lists the Go files of the repository.
func sources(t *testing.T) (files []string) {
	t.Helper()
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), "."):
			return filepath.SkipDir
		case filepath.Ext(path) == ".go":
			name, err := filepath.Rel(root, path)
			files = append(files, filepath.ToSlash(name))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
