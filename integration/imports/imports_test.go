package imports

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// module is the path of this module; what lies below it is ours.
const module = "github.com/kube-nft/kube-nft/"

// A wall says what a package may import besides the standard library; lists are separated by
// spaces. Its tests may import more: any of our packages, and whatever the module requires.
type wall struct {
	ours     string // packages of this module
	foreign  string // beginnings of import paths
	standard string // packages of the standard library that it may not import
}

// Groups of foreign packages. Two open sockets: netlinkSockets of every kind, rtnetlink for
// links, addresses and routes.
const (
	kubernetes     = "k8s.io/api/ k8s.io/apimachinery/"
	zap            = "go.uber.org/zap"
	system         = "golang.org/x/sys/unix"
	expressions    = "github.com/google/nftables/"
	netlinkSockets = "github.com/mdlayher/netlink"
	rtnetlink      = "github.com/vishvananda/netlink"
	prometheus     = "github.com/prometheus/"
)

// walls are the imports that are allowed, by package. They point one way: from cmd over sync and
// nft/services to nft/readback, nft/layout, nft and tracker. Nothing imports a package that no wall names: the lab is for
// tests and the programs under integration alone, and so on.
var walls = map[string]wall{
	"tracker":                {ours: "nft/attr", foreign: kubernetes},
	"tracker/trackertest":    {foreign: kubernetes},
	"tracker/informer":       {ours: "tracker sync/quota", foreign: kubernetes + " k8s.io/client-go/ k8s.io/klog/v2 github.com/go-logr/logr"},
	"tracker/manifest":       {ours: "tracker/manifest/watch", foreign: kubernetes + " sigs.k8s.io/ " + system},
	"tracker/manifest/watch": {foreign: system},

	"nft/attr":              {foreign: system},
	"nft":                   {ours: "nft/attr", foreign: expressions + " " + system, standard: "context net os syscall"},
	"nft/change":            {ours: "nft", standard: "context net os syscall"},
	"nft/kernel":            {ours: "nft nft/attr nft/change", foreign: expressions + " " + netlinkSockets + " " + system},
	"nft/layout":            {ours: "tracker nft", standard: "context net os syscall"},
	"nft/entries":           {ours: "nft", standard: "context net os syscall"},
	"nft/maglev":            {standard: "context net os syscall"},
	"nft/readback":          {ours: "tracker nft nft/layout", standard: "net os syscall"},
	"nft/services/order":    {standard: "context net os syscall"},
	"nft/services":          {ours: "tracker nft nft/change nft/entries nft/layout nft/maglev nft/readback nft/services/order", standard: "net os syscall"},
	"nft/nfttest":           {ours: "nft"},
	"nft/legacy":            {ours: "tracker nft nft/attr nft/kernel", foreign: netlinkSockets + " " + rtnetlink + " " + system},
	"nft/legacy/legacytest": {ours: "nft"},
	"nft/migrate":           {ours: "tracker nft nft/change nft/kernel nft/layout nft/readback nft/services nft/legacy", foreign: system},
	"conntrack":             {ours: "tracker nft/attr", foreign: netlinkSockets + " " + system},

	"sync/quota":     {},
	"sync":           {ours: "sync/quota tracker nft nft/change nft/entries nft/kernel nft/layout nft/readback nft/services conntrack", foreign: zap + " " + rtnetlink + " " + system},
	"sync/web":       {foreign: zap + " github.com/munnerz/goautoneg sigs.k8s.io/yaml"},
	"sync/health":    {ours: "sync sync/quota sync/web tracker", foreign: zap},
	"sync/localhost": {ours: "sync/quota sync/web tracker", foreign: zap},
	"sync/metrics":   {ours: "tracker nft nft/kernel nft/layout nft/readback nft/services sync", foreign: zap + " " + system + " " + prometheus + " k8s.io/client-go/ k8s.io/apimachinery/pkg/version"},

	"cmd/kube-nft":         {ours: "nft cmd/kube-nft/config cmd/kube-nft/daemon cmd/kube-nft/inspect cmd/kube-nft/move", foreign: "github.com/spf13/ " + zap},
	"cmd/kube-nft/config":  {ours: "conntrack nft nft/layout nft/services sync sync/quota tracker tracker/informer tracker/manifest tracker/manifest/watch", foreign: "github.com/spf13/pflag k8s.io/ sigs.k8s.io/ " + zap + " " + system},
	"cmd/kube-nft/daemon":  {ours: commands, foreign: "golang.org/x/sync/ " + commandNeeds},
	"cmd/kube-nft/inspect": {ours: "cmd/kube-nft/daemon " + commands, foreign: prometheus + " " + commandNeeds},
	"cmd/kube-nft/move":    {ours: "cmd/kube-nft/daemon " + commands, foreign: commandNeeds},

	"integration/lab":        {foreign: kubernetes + " " + netlinkSockets + " " + rtnetlink + " " + system},
	"integration/apiserver":  {foreign: kubernetes},
	"integration/walk/steps": {},
	"integration/demo":       {ours: "integration/lab", foreign: system},
	"integration/soak":       {ours: "integration/lab integration/apiserver", foreign: kubernetes},
	"integration/scale":      {ours: "integration/lab integration/apiserver tracker nft nft/change nft/kernel nft/layout nft/services", foreign: kubernetes + " " + system},
}

// What the packages of commands may import.
const (
	commands     = "cmd/kube-nft/config tracker tracker/informer tracker/manifest nft nft/change nft/kernel nft/layout nft/readback nft/services nft/legacy nft/migrate conntrack sync sync/health sync/quota sync/localhost sync/metrics sync/web"
	commandNeeds = "github.com/spf13/ k8s.io/ sigs.k8s.io/yaml " + zap + " " + system
)

// complaint returns why a package must not import another one, or "".
func complaint(from, imported string) string {
	w, ok := walls[from]
	first, _, _ := strings.Cut(imported, "/")
	own, ours := strings.CutPrefix(imported, module)
	isIt := func(path string) bool { return own == path }
	begins := func(prefix string) bool { return strings.HasPrefix(imported, prefix) }
	switch {
	case !ok:
		return "there is no wall for " + from
	case ours && slices.ContainsFunc(strings.Fields(w.ours), isIt):
	case !ours && strings.Contains(first, ".") && slices.ContainsFunc(strings.Fields(w.foreign), begins):
	case !strings.Contains(first, ".") && !slices.ContainsFunc(strings.Fields(w.standard), isIt):
	default:
		return "its wall does not allow it"
	}
	return ""
}

// TestImports holds every import of the module against the walls.
func TestImports(t *testing.T) {
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]bool{}
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		_, otherModule := os.Stat(filepath.Join(name, "go.mod"))
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != root && (otherModule == nil || strings.HasPrefix(entry.Name(), ".")):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go"):
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		dir = filepath.ToSlash(dir)
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		test := strings.HasSuffix(name, "_test.go")
		packages[dir] = packages[dir] || !test
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if why := complaint(dir, imported); why != "" && !test {
				t.Errorf("%s: package %s imports %s: %s", path.Base(name), dir, imported, why)
			}
			if imported == module+"sync" && (spec.Name == nil || spec.Name.Name != "proxysync") {
				t.Errorf("%s: package %s imports %s: call it proxysync, for sync is the standard library's", path.Base(name), dir, imported)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir := range walls {
		if !packages[dir] {
			t.Errorf("the wall of %s is about no package", dir)
		}
	}
}

// TestComplaint shows that the walls refuse what they are there to refuse.
func TestComplaint(t *testing.T) {
	for _, tt := range []struct {
		from, imported string
		allowed        bool
	}{
		{"tracker", "strings", true},
		{"tracker", "k8s.io/api/core/v1", true},
		{"tracker", "k8s.io/client-go/tools/cache", false},
		{"tracker", zap, false},
		{"tracker", module + "nft", false},
		{"tracker/informer", "k8s.io/client-go/tools/cache", true},
		{"tracker/manifest/watch", "k8s.io/client-go/tools/cache", false},
		{"nft/attr", module + "nft", false},
		{"nft/kernel", netlinkSockets, true},
		{"nft/kernel", module + "tracker", false},
		{"nft/services", module + "tracker", true},
		{"nft/services", netlinkSockets, false},
		{"nft/services", module + "nft/readback", true},
		{"nft/readback", module + "nft/services", false},
		{"nft/layout", module + "nft/readback", false},
		{"nft", "context", false},
		{"nft", module + "nft/change", false},
		{"nft/change", module + "nft/kernel", false},
		{"nft/services", "net/netip", true},
		{"nft/legacy", module + "nft/services", false},
		{"conntrack", module + "nft", false},
		{"conntrack", module + "tracker", true},
		{"sync", module + "tracker/informer", false},
		{"sync", module + "integration/lab", false},
		{"sync/health", module + "sync/web", true},
		{"cmd/kube-nft/config", module + "integration/lab", false},
		{"integration/demo", module + "integration/lab", true},
		{"integration/demo", module + "nft", false},
		{"elsewhere", "strings", false},
	} {
		if why := complaint(tt.from, tt.imported); (why == "") != tt.allowed {
			t.Errorf("%s imports %s: %q", tt.from, tt.imported, why)
		}
	}
}
