// Package walk measures the way of one endpoint through the program: from the store of the informer, which gets
// an EndpointSlice with an endpoint more, to the kernel's answer to the batch of one map element.
package walk

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/integration/walk/steps"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/informer"
)

// What the way may take: functions, and returns to a file that was left before.
const (
	mostFunctions = 110
	mostReturns   = 25
)

// recordTo names the file to which the test writes the record, in the process that it starts for that.
const recordTo = "KUBE_NFT_WALK"

// TestWalk bounds the way of an endpoint. The order in which functions of this module are entered is recorded, in a
// program whose sources have a call of steps.Enter in each function. What follows is counted over that record:
//
//   - functions: those that are entered, each once, where it is entered first. Function literals are a part of the
//     function around them. A function that only returns an expression is a name for that expression, and not counted.
//   - returns: how often the next one of these functions stands in another file than the one before, and that file had
//     been left before.
//
// The way begins with Update of the informer's store and ends with the kernel's answer. What the daemon puts between
// (a callback that rings the queue, metrics) is not a part of it.
func TestWalk(t *testing.T) {
	if to := os.Getenv(recordTo); to != "" {
		writeRecord(t, to)
		return
	}
	lab.Require(t)
	dir := t.TempDir()
	list := filepath.Join(dir, "record")
	command := exec.Command("go", "test", "-overlay", overlay(t, dir), "-vet=off", "-count=1", "-timeout=5m", "-run", "^TestWalk$", ".")
	command.Env = append(os.Environ(), recordTo+"="+list)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	content, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	way := strings.Fields(string(content))
	if len(way) == 0 || !strings.Contains(way[0], "tracker/informer/") {
		t.Fatalf("the record does not begin in the informer: %q", way)
	}
	functions, returns := measure(t, way)
	if functions > mostFunctions || returns > mostReturns {
		t.Errorf("the way has %d functions and %d returns to a file left, %d and %d at most", functions, returns, mostFunctions, mostReturns)
	}
}

// measure counts over a record, and logs each function: - says that its file is a new one, < that it is one that was left.
func measure(t *testing.T, entered []string) (functions, returns int) {
	seen, left, at := make(map[string]bool), make(map[string]bool), ""
	for _, function := range entered {
		if seen[function] {
			continue
		}
		seen[function] = true
		functions++
		file, name, _ := strings.Cut(function, ":")
		mark := " "
		switch {
		case file != at && left[file]:
			returns++
			mark = "<"
		case file != at:
			mark = "-"
		}
		at, left[at] = file, true
		t.Logf("%3d %s %-36s %s", functions, mark, file, name)
	}
	t.Logf("%d functions, %d returns to a file left, in %d files", functions, returns, len(left))
	return functions, returns
}

// overlay writes sources in which each function notes that it is entered, and returns the file for -overlay.
func overlay(t *testing.T, dir string) string {
	t.Helper()
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	replace := make(map[string]string)
	for _, tree := range []string{"tracker", "sync", "nft", "conntrack"} {
		err := filepath.WalkDir(filepath.Join(root, tree), func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			to := filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
			replace[path] = to
			return os.WriteFile(to, noting(t, path, name), 0o600)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// noting returns a source with a call of steps.Enter at the beginning of each function.
func noting(t *testing.T, path, name string) []byte {
	t.Helper()
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range slices.Backward(file.Decls) {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil || isExpression(f) {
			continue
		}
		function := f.Name.Name
		if f.Recv != nil {
			receiver := string(source[files.Position(f.Recv.List[0].Type.Pos()).Offset:files.Position(f.Recv.List[0].Type.End()).Offset])
			function = strings.ReplaceAll(receiver, " ", "") + "." + function
		}
		at := files.Position(f.Body.Lbrace).Offset + 1
		source = slices.Insert(source, at, []byte(fmt.Sprintf("walksteps.Enter(%q);", name+":"+function))...)
	}
	source = append(source, "\nvar _ = walksteps.Enter\n"...)
	at := files.Position(file.Name.End()).Offset
	return slices.Insert(source, at, []byte(`; import walksteps "github.com/kube-nft/kube-nft/integration/walk/steps"`)...)
}

// isExpression reports whether a function is a name for an expression: it only returns.
func isExpression(f *ast.FuncDecl) bool {
	if len(f.Body.List) != 1 {
		return false
	}
	_, ok := f.Body.List[0].(*ast.ReturnStmt)
	return ok
}

// writeRecord sends one endpoint on its way and writes down which functions are entered.
func writeRecord(t *testing.T, to string) {
	server := apiserver.New()
	addr := netip.MustParseAddr("10.96.0.10")
	pods := lab.Addresses(netip.MustParseAddr("10.244.0.10"), 10)
	for i := range 3 {
		name := fmt.Sprint("web-", i)
		server.Apply(lab.Service("shop", name, lab.After(addr, i)), lab.Slice("shop", name, 0, corev1.IPv4Protocol, pods[:9]))
	}
	url, err := server.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: url})
	if err != nil {
		t.Fatal(err)
	}
	queue, tracked := proxysync.NewQueue(), tracker.New(tracker.Config{NodeName: "node-a"})
	source := informer.New(client, informer.Options{NodeName: "node-a", Changed: queue.Ring})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- source.Run(ctx, tracked) }()
	<-source.Synced()

	lab.New(t) // for this goroutine: connections to the API server are others'
	k := lab.Open(t, kernel.Open)
	if _, err := k.Probe(ctx); err != nil {
		t.Fatal(err)
	}
	reports, cleaned := make(chan proxysync.Report, 10), make(chan proxysync.FlowReport, 10)
	recorder := &recorder{Client: k, entered: make(chan []string, 10)}
	loop := proxysync.New(tracked, services.NewRuleset(services.Config{Families: nft.Families[:]}), recorder, proxysync.Options{
		Queue: queue, Log: zap.NewNop(), Committed: func(r proxysync.Report) { reports <- r },
		Cleaned: func(r proxysync.FlowReport) { cleaned <- r },
	})
	loop.CleanFlows(conntrack.NewReconciler(lab.Open(t, conntrack.Open)))
	loop.CleanAffinity(lab.Open(t, kernel.Open))
	loop.Watch(lab.Open(t, func() (*kernel.Monitor, error) { return kernel.NewMonitor(k) }))
	go func() { ended <- loop.Run(ctx) }()
	<-recorder.entered // the start
	<-reports
	<-cleaned // what looks at all connections afterwards
	var way []string
	for i := range 2 { // after the first one, what is made once is there
		steps.Start()
		slice := lab.Slice("shop", fmt.Sprint("web-", i), 0, corev1.IPv4Protocol, pods)
		slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
		server.Apply(slice)
		way = <-recorder.entered
		if report := <-reports; report.Operations != 1 || report.Elements != 1 {
			t.Errorf("%d operations with %d elements, want 1 with 1", report.Operations, report.Elements)
		}
	}
	if err := os.WriteFile(to, []byte(strings.Join(way, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A recorder ends the record with the kernel's answer to a batch.
type recorder struct {
	*kernel.Client
	entered chan []string
}

func (r *recorder) Commit(ctx context.Context, b nft.Batch) error {
	err := r.Client.Commit(ctx, b)
	r.entered <- steps.Stop()
	return err
}
