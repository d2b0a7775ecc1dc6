package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// modules are those that the module of the working directory needs.
type modules struct {
	folders map[string]string   // where each is, by path
	needs   map[string][]string // paths of the modules that one needs, by path
}

// readModules asks go.
func readModules() (*modules, error) {
	list, err := lines("list", "-m", "-f", "{{.Path}} {{.Version}} {{.Dir}}", "all")
	if err != nil {
		return nil, err
	}
	m := &modules{folders: make(map[string]string), needs: make(map[string][]string)}
	selected := make(map[string]bool) // path@version of those that are in use; the main module has no version
	for _, line := range list {
		path, rest, _ := strings.Cut(line, " ")
		version, folder, _ := strings.Cut(rest, " ")
		m.folders[path] = folder
		selected[strings.TrimSuffix(path+"@"+version, "@")] = true
	}
	graph, err := lines("mod", "graph")
	if err != nil {
		return nil, err
	}
	for _, line := range graph {
		from, to, _ := strings.Cut(line, " ")
		if selected[from] {
			path, _, _ := strings.Cut(from, "@")
			needed, _, _ := strings.Cut(to, "@")
			m.needs[path] = append(m.needs[path], needed)
		}
	}
	return m, nil
}

// lines runs go and returns what it prints.
func lines(args ...string) ([]string, error) {
	out, err := exec.Command("go", args...).Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return nil, fmt.Errorf("go %s: %s", strings.Join(args, " "), strings.TrimSpace(string(failed.Stderr)))
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), err
}

// covered is how much of a file the text of a licence has to be, in percent.
const covered = 75

// licences finds the SPDX identifiers of a module's licences.
func (m *modules) licences(path string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(m.folders[path], "LICEN[CS]E*"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		found := licensecheck.Scan(text)
		if found.Percent < covered {
			continue
		}
		var ids []string
		for _, match := range found.Match {
			if !match.IsURL && !slices.Contains(ids, match.ID) {
				ids = append(ids, match.ID)
			}
		}
		if len(ids) > 0 {
			return ids, nil
		}
	}
	return nil, fmt.Errorf("%s: no licence found in %v", path, files)
}
