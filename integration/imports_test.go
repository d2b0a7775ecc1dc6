package integration

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// module is the path of this module; what lies below it is ours.
const module = "github.com/kube-nft/kube-nft/"

// An importRule says what the packages of a directory may import besides the standard
// library.
type importRule struct {
	Ours    []string // directories of this module; "x/*" stands for all directly below x
	Below   bool     // they may import each other, and those in directories further down
	Foreign []string // prefixes of import paths
}

// Groups of foreign packages.
const (
	kubernetesTypes = "k8s.io/api/"
	kubernetesMeta  = "k8s.io/apimachinery/"
	zap             = "go.uber.org/zap"
	system          = "golang.org/x/sys/unix"
	netlinkSockets  = "github.com/mdlayher/netlink"
	rtnetlink       = "github.com/vishvananda/netlink"
)

// importRules are the edges that are allowed, by directory; a directory without a rule has
// that of the nearest one above it. Imports point one way: from cmd over sync and nft to
// tracker.
var importRules = map[string]importRule{
	"nft/attr":         {Foreign: []string{system}},
	"tracker":          {Ours: []string{"nft/attr"}, Foreign: []string{kubernetesTypes, kubernetesMeta}},
	"tracker/informer": {Ours: []string{"tracker"}, Foreign: []string{kubernetesTypes, kubernetesMeta, "k8s.io/client-go/", "k8s.io/klog/v2", "github.com/go-logr/logr"}},
	"tracker/manifest": {Below: true, Ours: []string{"tracker"}, Foreign: []string{kubernetesTypes, kubernetesMeta, "sigs.k8s.io/", system}},
	"nft":              {Ours: []string{"tracker", "nft/attr"}, Foreign: []string{netlinkSockets, "github.com/google/nftables", system}},
	"nft/legacy":       {Ours: []string{"nft", "nft/attr"}, Foreign: []string{netlinkSockets, rtnetlink, system}},
	"nft/migrate":      {Ours: []string{"tracker", "nft", "nft/legacy"}, Foreign: []string{system}},
	"conntrack":        {Ours: []string{"tracker", "nft/attr"}, Foreign: []string{netlinkSockets, system}},
	"sync":             {Below: true, Ours: []string{"tracker", "nft", "conntrack"}, Foreign: []string{zap, rtnetlink, system, "github.com/prometheus/", kubernetesTypes, kubernetesMeta, "k8s.io/client-go/"}},
	"cmd":              {Below: true, Ours: []string{"tracker", "tracker/*", "tracker/manifest/*", "nft/*", "sync/*", "nft", "conntrack", "sync"}, Foreign: []string{"k8s.io/", "sigs.k8s.io/", zap, system, "github.com/spf13/", "github.com/prometheus/", "golang.org/x/sync/"}},
	"integration":      {Below: true, Foreign: []string{"k8s.io/", "sigs.k8s.io/", rtnetlink, system}},
	// The one package that draws is imported by the scale program alone, not by the daemon.
	"integration/scale":       {Ours: []string{"tracker", "tracker/informer", "nft", "integration/apiserver", "integration/daemon", "integration/scale/chart"}, Foreign: []string{"k8s.io/", rtnetlink, system}},
	"integration/scale/chart": {Foreign: []string{"gonum.org/v1/plot"}},
}

// kubernetesFiles are the files of package nft that may speak of Services: those that turn
// them into tables, and back into names.
var kubernetesFiles = []string{"claims.go", "flows.go", "names.go", "owner.go", "ruleset.go", "service.go", "sticky.go"}

// socketFiles are the files of package nft that may open a socket.
var socketFiles = []string{"kernel.go", "monitor.go"}

// testPackages are there for tests: nothing else imports them.
var testPackages = []string{module + "integration/netns", module + "nft/legacy/legacytest", module + "tracker/trackertest"}

// TestImports holds every import of the module against the rules.
func TestImports(t *testing.T) {
	used := map[string]bool{}
	for _, file := range sourceFiles(t, "..") {
		imports := parseImports(t, file)
		dir := path.Dir(file)
		used[ruleFor(dir)] = true
		for _, spec := range imports {
			if complaint := importComplaint(file, spec.path); complaint != "" {
				t.Errorf("%s imports %s: %s", file, spec.path, complaint)
			}
			if spec.path == module+"sync" && spec.name != "proxysync" {
				t.Errorf("%s imports %s as %q: outside of it, sync is the standard library's, ours is proxysync", file, spec.path, spec.name)
			}
		}
	}
	for dir := range importRules {
		if !used[dir] {
			t.Errorf("the rule for %s is about no package", dir)
		}
	}
}

// TestImportRules shows that the rules refuse what they are there to refuse.
func TestImportRules(t *testing.T) {
	for _, tt := range []struct {
		file, path string
		allowed    bool
	}{
		{"tracker/service.go", "strings", true},
		{"tracker/service.go", "k8s.io/api/core/v1", true},
		{"tracker/service.go", "k8s.io/client-go/tools/cache", false},
		{"tracker/service.go", "k8s.io/klog/v2", false},
		{"tracker/service.go", zap, false},
		{"tracker/service.go", module + "nft", false},
		{"tracker/informer/store.go", "k8s.io/client-go/tools/cache", true},
		{"tracker/manifest/watch/watch.go", "k8s.io/client-go/tools/cache", false},
		{"tracker/types.go", module + "nft/attr", true},
		{"nft/attr/family.go", module + "tracker", false},
		{"nft/service.go", module + "tracker", true},
		{"nft/match.go", module + "tracker", false},
		{"nft/match.go", netlinkSockets, false},
		{"nft/kernel.go", netlinkSockets, true},
		{"nft/kernel.go", zap, false},
		{"nft/kernel.go", module + "sync", false},
		{"nft/world_test.go", module + "tracker", true},
		{"nft/kernel_test.go", module + "integration/netns", true},
		{"nft/kernel.go", module + "integration/netns", false},
		{"nft/legacy/netlink.go", module + "tracker", false},
		{"conntrack/table.go", module + "nft", false},
		{"conntrack/table.go", module + "tracker", true},
		{"sync/loop.go", module + "tracker/informer", false},
		{"sync/loop.go", module + "cmd/kube-nft/config", false},
		{"sync/health/proxy.go", module + "sync/web", true},
		{"cmd/kube-nft/run.go", module + "tracker/informer", true},
		{"cmd/kube-nft/run.go", module + "integration/netns", false},
		{"integration/demo/main.go", module + "nft", false},
		{"integration/kernel_test.go", module + "nft", true},
		{"elsewhere/main.go", module + "nft", false},
	} {
		if complaint := importComplaint(tt.file, tt.path); (complaint == "") != tt.allowed {
			t.Errorf("%s imports %s: %q", tt.file, tt.path, complaint)
		}
	}
}

// importComplaint returns why a file must not import a package, or "". Tests may import
// more: any of our packages but commands, and whatever their package's module needs.
func importComplaint(file, imported string) string {
	dir, base := path.Split(file)
	dir = strings.TrimSuffix(dir, "/")
	test := strings.HasSuffix(base, "_test.go")
	switch {
	case test:
		return ""
	case slices.Contains(testPackages, imported):
		return "only tests may"
	case isStandard(imported):
		return ""
	}
	above := ruleFor(dir)
	rule, ok := importRules[above]
	if !ok {
		return "there is no rule for " + dir
	}
	if own, ours := strings.CutPrefix(imported, module); ours {
		return ourComplaint(dir, base, above, own, rule)
	}
	if dir == "nft" && imported == netlinkSockets && !slices.Contains(socketFiles, base) {
		return "only " + strings.Join(socketFiles, ", ") + " may"
	}
	if !slices.ContainsFunc(rule.Foreign, func(prefix string) bool { return strings.HasPrefix(imported, prefix) }) {
		return "the rule for " + above + " does not allow it"
	}
	return ""
}

// ourComplaint is importComplaint for a package of this module, named by its directory.
func ourComplaint(dir, base, above, imported string, rule importRule) string {
	switch {
	case dir == "nft" && imported == "tracker" && !slices.Contains(kubernetesFiles, base):
		return "only " + strings.Join(kubernetesFiles, ", ") + " may"
	case rule.Below && within(imported, above), slices.Contains(rule.Ours, imported), slices.Contains(rule.Ours, path.Dir(imported)+"/*"):
		return ""
	}
	return "the rule for " + above + " does not allow it"
}

// within reports whether a directory is root or lies below it.
func within(dir, root string) bool { return dir == root || strings.HasPrefix(dir, root+"/") }

// ruleFor returns the nearest directory at or above dir that has a rule, or "".
func ruleFor(dir string) string {
	for ; dir != "." && dir != ""; dir = path.Dir(dir) {
		if _, ok := importRules[dir]; ok {
			return dir
		}
	}
	return ""
}

// isStandard reports whether a package belongs to the standard library: its path begins
// with no domain name.
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// sourceFiles lists the Go files below root, relative to it, with slashes.
func sourceFiles(t *testing.T, root string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != root && strings.HasPrefix(entry.Name(), "."):
			return filepath.SkipDir
		case strings.HasSuffix(name, ".go"):
			relative, err := filepath.Rel(root, name)
			files = append(files, filepath.ToSlash(relative))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// An importSpec is one line of an import list.
type importSpec struct{ name, path string }

// parseImports reads a file's import list.
func parseImports(t *testing.T, file string) []importSpec {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", file), nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	specs := make([]importSpec, 0, len(parsed.Imports))
	for _, spec := range parsed.Imports {
		specs = append(specs, importSpec{name: nameOf(spec.Name), path: unquote(t, spec.Path.Value)})
	}
	return specs
}

// nameOf returns the name that an import list gives a package, or "".
func nameOf(ident *ast.Ident) string {
	if ident == nil {
		return ""
	}
	return ident.Name
}

// unquote returns the value of a string literal.
func unquote(t *testing.T, literal string) string {
	t.Helper()
	value, err := strconv.Unquote(literal)
	if err != nil {
		t.Fatal(err)
	}
	return value
}
