package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/cluster"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
)

// A nodeCommand is what the program does in the pod of a node.
type nodeCommand func(ctx context.Context, node string, args []string, stdin io.Reader, stdout, stderr io.Writer) int

// A pluginCluster is an API server whose nodes run commands, and a kubeconfig for it.
type pluginCluster struct {
	*apiserver.Server
	kubeconfig string

	mu        sync.Mutex
	ran       map[string]int // by node and command
	now, most int            // commands at the same time
}

// newPluginCluster returns a cluster with a pod of kube-nft on each node.
func newPluginCluster(t *testing.T, run nodeCommand, nodes ...string) *pluginCluster {
	t.Helper()
	c := &pluginCluster{Server: apiserver.New(), ran: make(map[string]int)}
	t.Cleanup(c.Close)
	if _, err := c.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	for _, name := range nodes {
		c.Apply(lab.Node(name), lab.Pod(name))
	}
	c.RunCommands(func(ctx context.Context, pod *corev1.Pod, args []string, stdin io.Reader,
		stdout, stderr io.Writer) int {
		if args[0] != "/kube-nft" {
			fmt.Fprintf(stderr, "%s: no such file", args[0])
			return 127
		}
		c.mu.Lock()
		c.ran[pod.Spec.NodeName+" "+args[1]]++
		c.now++
		c.most = max(c.most, c.now)
		c.mu.Unlock()
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.now--
		}()
		return run(ctx, pod.Spec.NodeName, args[1:], stdin, stdout, stderr)
	})
	var err error
	if c.kubeconfig, err = c.Kubeconfig(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	return c
}

// plugin runs kubectl kube-nft until it ends, or ctx does.
func (c *pluginCluster) plugin(ctx context.Context, stdout io.Writer, args ...string) (code int, stderr string) {
	var errs bytes.Buffer
	args = append(args, "--kubeconfig", c.kubeconfig)
	code = execute(ctx, newPlugin(), args, stdout, &errs)
	return code, errs.String()
}

// servingStatus is the document of a node on which all is well.
func servingStatus(version string) *inspect.Status {
	started := time.Now().Add(-time.Hour)
	return &inspect.Status{
		Services: 7, Tables: []inspect.TableStatus{{Family: "IPv4", Endpoints: 20, FrontendsDigest: "f"}},
		Daemon: inspect.DaemonStatus{Reached: true, Version: version, Started: &started,
			Status: &peer.Status{Ready: true, Healthy: true, NodeEligible: true, LastSync: started, Repairs: 3}},
	}
}

// answers prints a status.
func answers(stdout io.Writer, s *inspect.Status) int {
	_ = json.NewEncoder(stdout).Encode(s) // the plug-in may be gone
	if s.Daemon.Works() {
		return exitOK
	}
	return exitFound
}

// TestPluginStatus: over WebSockets and over SPDY, a node that serves, one with another version, one that waits, one
// that does not answer, one whose daemon is gone, and one without a pod have a row each, and stand in the totals.
func TestPluginStatus(t *testing.T) {
	c := newPluginCluster(t, func(ctx context.Context, node string, _ []string, _ io.Reader,
		stdout, stderr io.Writer) int {
		switch node {
		case "b-older":
			return answers(stdout, servingStatus("v1"))
		case "c-waits":
			s := servingStatus("v2")
			s.Daemon.Status = &peer.Status{WaitingFor: "the API server: refused", Conflicts: 2, RefusedFields: 5,
				SkippedPorts: 1, UnmetAnnotations: 1, UnservedServices: 1, UnservedChecks: 1}
			return answers(stdout, s)
		case "silent":
			<-ctx.Done()
			return 1
		case "e-broken":
			fmt.Fprint(stderr, "kube-nft: needs CAP_NET_ADMIN")
			return exitTrouble
		}
		return answers(stdout, servingStatus("v2"))
	}, "a-serves", "b-older", "c-waits", "e-broken", "f-gone", "silent")
	c.Delete("Pod", "kube-system", "kube-nft-f-gone")
	asked := []string{"a-serves", "b-older", "c-waits", "e-broken", "f-gone"}
	for _, protocol := range []string{"WebSocket", "SPDY"} {
		if protocol == "SPDY" {
			c.RefuseWebSockets()
		}
		var out bytes.Buffer
		code, stderr := c.plugin(t.Context(), &out, append([]string{"status"}, asked...)...)
		want := []string{
			"NODE      VERSION  HEALTHY  IN SYNC  SERVICES  ENDPOINTS  REFUSALS  CONFLICTS  REPAIRS  STATE",
			"a-serves  v2       yes      60m      7         20         0         0          3        healthy",
			"b-older   v1       yes      60m      7         20         0         0          3        healthy",
			"c-waits   v2       no       -        7         20         4         2          0        " +
				"has not synced since its start; it waits for the API server: refused",
			"e-broken  -        -        -        -         -          -         -          -        " +
				"command terminated with exit code 2: kube-nft: needs CAP_NET_ADMIN",
			"f-gone    -        -        -        -         -          -         -          -        " +
				"no pod of kube-nft: no DaemonSet of kube-nft in this namespace (-n) selects the node",
			"",
			"kube-nft serves on 2 of 5 nodes", "without a pod: f-gone", "without an answer: e-broken",
			"not serving: c-waits", "versions: v2 on 2 nodes; v1 on b-older", "",
		}
		if code != exitFound || stderr != "" || out.String() != strings.Join(want, "\n") {
			t.Errorf("%s: exit %d, %s\n%s\nwant\n%s", protocol, code, stderr, &out, strings.Join(want, "\n"))
		}
	}
	var out bytes.Buffer
	code, stderr := c.plugin(t.Context(), &out, "status", "silent", "--timeout", "100ms")
	if code != exitFound || stderr != "" || !strings.Contains(out.String(), " no answer within 100ms\n") {
		t.Errorf("a node that is silent: exit %d, %s\n%s", code, stderr, &out)
	}
	out.Reset()
	code, stderr = c.plugin(t.Context(), &out, "status", "a-serves", "-o", "wide")
	if code != exitOK || stderr != "" || !strings.Contains(out.String(), " kube-nft-a-serves ") ||
		!strings.Contains(out.String(), "KUBE-PROXY") {
		t.Errorf("wide: exit %d, %s\n%s", code, stderr, &out)
	}
}

// TestPluginWithoutRights: a user who may not run commands, or list nodes, gets one error that names the rule and the
// file that has it, and no node is asked again and again.
func TestPluginWithoutRights(t *testing.T) {
	var nodes []string
	for i := range 50 {
		nodes = append(nodes, fmt.Sprintf("node-%02d", i))
	}
	c := newPluginCluster(t, func(context.Context, string, []string, io.Reader, io.Writer, io.Writer) int { return 0 },
		nodes...)
	for resource, commands := range map[string][][]string{
		"pods/exec": {{"status"}, {"check"}, {"diff"}, {"get", "services"}, {"explain", "203.0.113.5", "shop/web"}},
		"nodes":     {{"status"}},
		"pods":      {{"status"}},
	} {
		c.Forbid(resource, true)
		for _, command := range commands {
			var out bytes.Buffer
			before := len(c.Requests())
			code, stderr := c.plugin(t.Context(), &out, append(command, "--parallel", "2")...)
			if code != exitTrouble || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "forbidden") ||
				!strings.Contains(stderr, resource) || !strings.Contains(stderr, "deploy/plugin-rbac.yaml") {
				t.Errorf("%s, %v: exit %d, %s", resource, command, code, stderr)
			}
			if asked := len(c.Requests()) - before; asked > 20 {
				t.Errorf("%s, %v: %d requests", resource, command, asked)
			}
		}
		c.Forbid(resource, false)
	}
}

// TestPluginWatchesStatus: status -w prints all rows, then those that change, also of nodes that come and go, and ends
// with the interrupt.
func TestPluginWatchesStatus(t *testing.T) {
	var mu sync.Mutex
	broken := false
	c := newPluginCluster(t, func(_ context.Context, node string, _ []string, _ io.Reader, stdout, _ io.Writer) int {
		mu.Lock()
		defer mu.Unlock()
		s := servingStatus("v1")
		s.Daemon.Healthy = node != "b" || !broken
		return answers(stdout, s)
	}, "a", "b")
	ctx, stop := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	ended := make(chan int)
	go func() {
		code, _ := c.plugin(ctx, writer, "status", "-w", "--interval", "1s", "-o", "json")
		writer.Close()
		ended <- code
	}()
	documents := json.NewDecoder(reader)
	next := func() (d struct {
		Kind, Node, State string
		Serves            bool
	}) {
		t.Helper()
		if err := documents.Decode(&d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, node := range []string{"a", "b"} {
		if d := next(); d.Kind != "NodeStatus" || d.Node != node || !d.Serves {
			t.Errorf("at first %+v", d)
		}
	}
	mu.Lock()
	broken = true
	mu.Unlock()
	if d := next(); d.Node != "b" || d.Serves || !strings.HasPrefix(d.State, "unhealthy") {
		t.Errorf("a node that became unhealthy: %+v", d)
	}
	c.Delete("Node", "", "b")
	if d := next(); d.Node != "b" || d.State != "there is no such node any more" {
		t.Errorf("a node that has gone: %+v", d)
	}
	stop()
	go io.Copy(io.Discard, reader)
	if code := <-ended; code != exitOK {
		t.Errorf("exit %d after the node that was unhealthy has gone", code)
	}
}

// TestPluginCompletes: the shell is offered nodes, kinds of lists and values of flags.
func TestPluginCompletes(t *testing.T) {
	c := newPluginCluster(t, nil, "worker-1", "worker-2")
	for words, want := range map[string]string{
		"status ": "worker-1 worker-2", "top --node ": "worker-1 worker-2", "explain ": "worker-1 worker-2",
		"get ": "services endpoints affinity", "top --sort ": "new active refused name",
		"get services --sort-by ": "node service frontend kind ep local policy affinity family verdict",
		"status -o ":              "table wide json yaml",
	} {
		var out bytes.Buffer
		args := append([]string{"__complete", "--kubeconfig", c.kubeconfig}, strings.Split(words, " ")...)
		code := execute(t.Context(), newPlugin(), args, &out, io.Discard)
		offered, _, _ := strings.Cut(out.String(), ":")
		if got := strings.Join(strings.Fields(offered), " "); code != exitOK || got != want {
			t.Errorf("%s: exit %d, %q, want %q", words, code, got, want)
		}
	}
}

// TestPluginGet: the nodes get the flags about Services, each under its own name.
func TestPluginGet(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	c := newPluginCluster(t, func(_ context.Context, _ string, args []string, _ io.Reader, stdout, _ io.Writer) int {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, strings.Join(args, " "))
		fmt.Fprint(stdout, "SERVICE   EP\nshop/web  2\n")
		return exitOK
	}, "n1")
	for args, want := range map[string]string{
		"get services shop/web":                             "get -o table services shop/web",
		"get services -A --sort-by ep":                      "get -o table --all-namespaces=true services",
		"get services --sort-by ep -o json":                 "get -o json --sort-by ep services",
		"get services --sort-by node -o yaml":               "get -o json services",
		"get services --in shop --service-selector app=b,c": "get -o table --namespace=shop --selector=app=b,c services",
	} {
		asked = nil
		var out bytes.Buffer
		if _, stderr := c.plugin(t.Context(), &out, strings.Fields(args)...); !slices.Equal(asked, []string{want}) {
			t.Errorf("%s: asked %q, want %q; %s%s", args, asked, want, &out, stderr)
		}
	}
}

// TestPluginDiff: a node whose tables were edited has a row with what a sync would do; the others are as they should
// be.
func TestPluginDiff(t *testing.T) {
	c := newPluginCluster(t, func(_ context.Context, node string, args []string, _ io.Reader,
		stdout, stderr io.Writer) int {
		switch {
		case node == "c":
			fmt.Fprint(stderr, "kube-nft: the API server does not answer")
			return exitTrouble
		case args[0] == "status":
			return answers(stdout, servingStatus("v1"))
		case node == "b":
			fmt.Fprintln(stdout, "add element ip kube-nft services { 10.96.0.80 . tcp . 80 : goto cluster-4 }")
			return exitFound
		}
		return exitOK
	}, "a", "b", "c")
	for _, tt := range []struct {
		nodes []string
		code  int
		want  []string
	}{
		{[]string{"a"}, exitOK, []string{"a     0      as the API server says\n", "0 of 1 node differ"}},
		{[]string{"a", "b"}, exitFound, []string{"b     1      differs from the API server\n",
			"b would do:\n  add element ip kube-nft services", "1 of 2 nodes differ"}},
		{nil, exitTrouble, []string{"c     -      command terminated with exit code 2: kube-nft: the API server does not " +
			"answer"}},
	} {
		var out bytes.Buffer
		code, stderr := c.plugin(t.Context(), &out, append([]string{"diff"}, tt.nodes...)...)
		for _, want := range tt.want {
			if code != tt.code || !strings.Contains(out.String(), want) {
				t.Errorf("%v: exit %d, %s; want %q in\n%s", tt.nodes, code, stderr, want, &out)
			}
		}
	}
}

// TestPluginFollows: trace, flows and top merge the documents of all nodes, pass their flags on, name a node that
// cannot, show warnings, and end on every node when the plug-in is interrupted, or has printed as many as it was asked
// for.
func TestPluginFollows(t *testing.T) {
	at := time.Date(2026, 11, 20, 10, 58, 1, 0, time.UTC)
	rate := 2.5
	flow := &inspect.EndedConnection{TypeMeta: output.Kind("EndedConnection"), Namespace: "shop", Service: "web",
		Protocol: "tcp", Frontend: "10.96.0.80:80", Client: "192.0.2.9:1", Endpoint: "10.244.0.20:8080"}
	packet := &inspect.TracedPacket{TypeMeta: output.Kind("TracedPacket"), Source: "192.0.2.9:1",
		Destination: "10.96.0.80:80", Protocol: "tcp", Outcome: "dropped"}
	top := &inspect.Top{TypeMeta: output.Kind("Top"), Time: at, IntervalSeconds: 2, Counted: true, Complete: true,
		Active: 3, New: &rate, Services: []*inspect.TopService{{Namespace: "shop", Name: "web", New: &rate, Active: 3}}}
	var mu sync.Mutex
	asked, ended := "", make(chan string, 10)
	c := newPluginCluster(t, func(_ context.Context, node string, args []string, stdin io.Reader,
		stdout, stderr io.Writer) int {
		if node == "c" {
			fmt.Fprint(stderr, "kube-nft: needs Linux 5.12")
			return exitFailed
		}
		mu.Lock()
		asked = strings.Join(args, " ")
		mu.Unlock()
		origin := inspect.Origin{Time: at}
		if node == "a" { // it comes later than that of b, if it does not come first
			origin.Time = at.Add(time.Second)
		}
		var d any = top
		switch args[0] {
		case "flows":
			own := *flow
			own.Origin, d = origin, &own
		case "trace":
			own := *packet
			own.Origin, d = origin, &own
		}
		if args[0] == "flows" {
			fmt.Fprint(stderr, "kube-nft: warning: the kernel does not count\n")
		}
		_ = output.WriteLine(stdout, d)
		_, _ = io.Copy(io.Discard, stdin) // until the plug-in is gone
		ended <- node
		return exitOK
	}, "a", "b", "c")
	columns := func(text string) string { return regexp.MustCompile(" +").ReplaceAllString(text, " ") }
	for _, tt := range []struct {
		args         []string
		asked, want  string
		stderr       string
		wantExitCode int
	}{
		{[]string{"trace", "shop/web", "--source", "192.0.2.9", "--count", "2", "--duration", "1m"},
			"trace --until-input-ends -o json --source=192.0.2.9 --timeout=1m0s -- shop/web",
			"b 10:58:01.000000 192.0.2.9:1 -> 10.96.0.80:80/tcp\nb dropped\n\n" +
				"a 10:58:02.000000 192.0.2.9:1 -> 10.96.0.80:80/tcp\na dropped\n\n",
			"c: command terminated with exit code 1: kube-nft: needs Linux 5.12\n" +
				"kubectl kube-nft: no answer from 1 node\n", exitTrouble},
		{[]string{"top", "--in", "shop", "--count", "1", "--interval", "100ms", "--node", "a,b"},
			"top --until-input-ends -o json --interval=100ms --namespace=shop --",
			"10:58:01, 2.0 s: 2 rows, 5.0 new connections a second, 6 active\nrefused a second on 2 nodes: none\n\n" +
				"NODE SERVICE NEW/S ACTIVE REFUSED/S\na shop/web 2.5 3 -\nb shop/web 2.5 3 -\n", "", exitOK},
	} {
		var out bytes.Buffer
		code, stderr := c.plugin(t.Context(), &out, tt.args...)
		got := columns(out.String())
		if code != tt.wantExitCode || stderr != tt.stderr || got != tt.want || asked != tt.asked {
			t.Errorf("%v: exit %d, %s\nasked %s\n%s", tt.args, code, stderr, asked, got)
		}
		for range 2 {
			<-ended // on both nodes
		}
	}
	// An interrupt ends the commands as well, and what has come is printed before.
	ctx, stop := context.WithCancel(t.Context())
	var out bytes.Buffer
	done := make(chan int)
	read, write := io.Pipe()
	go func() {
		done <- execute(ctx, newPlugin(), []string{"flows", "--node", "a,b", "-o", "json", "--kubeconfig", c.kubeconfig},
			&out, write)
		_ = write.Close()
	}()
	warned := bufio.NewScanner(read)
	if warned.Scan(); !strings.HasSuffix(warned.Text(), ": warning: the kernel does not count") {
		t.Errorf("it warns %q", warned.Text())
	}
	go func() { _, _ = io.Copy(io.Discard, read) }() // a busy machine may take a second for the other node
	lab.Eventually(t, "the commands of both nodes", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.ran["a flows"]+c.ran["b flows"] == 2
	})
	stop()
	if code := <-done; code != exitOK {
		t.Errorf("interrupted: exit %d", code)
	}
	for range 2 {
		<-ended
	}
	// A command line that the node refuses is refused before a node is asked.
	for _, tt := range []usage{
		{[]string{"trace"}, "trace: expected a Service or an address, --source, or both"},
		{[]string{"flows", "--endpoint", "x"}, `--endpoint "x": expected an IP address or ADDR:PORT`},
		{[]string{"top", "--sort", "size"}, "--sort size: expected new, active, refused or name"},
		{[]string{"top", "-o", "yaml"}, "--output yaml: expected table or json"},
	} {
		code, stderr := c.plugin(t.Context(), io.Discard, tt.args...)
		if code != exitUsage || !strings.HasPrefix(stderr, "kubectl kube-nft: "+tt.want) {
			t.Errorf("%v: exit %d, %s", tt.args, code, stderr)
		}
	}
}

// TestPluginOf200Nodes: status asks each node once, no more at the same time than --parallel, and a node that does not
// answer delays the rest by nothing. The log has what the program took; docs/operations.md has such numbers.
func TestPluginOf200Nodes(t *testing.T) {
	const nodes, delay = 200, 150 * time.Millisecond // of a node whose tables have 1,000 Services, with its exec
	var names []string
	for i := range nodes {
		names = append(names, fmt.Sprintf("node-%03d", i))
	}
	c := newPluginCluster(t, func(ctx context.Context, _ string, _ []string, _ io.Reader, stdout, _ io.Writer) int {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		}
		return answers(stdout, servingStatus("v1"))
	}, names...)
	plugin := filepath.Join(t.TempDir(), cluster.Name)
	if err := os.Symlink(lab.Program(t), plugin); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	cmd := exec.Command(plugin, "status", "--kubeconfig", c.kubeconfig)
	out, err := cmd.CombinedOutput()
	t.Logf("%d nodes that take %s each: %s, %d MiB", nodes, delay, time.Since(began).Round(10*time.Millisecond),
		cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss>>10)
	if err != nil || !strings.Contains(string(out), "\nkube-nft serves on 200 of 200 nodes\n") {
		t.Fatalf("%v\n%s", err, out)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		if n := c.ran[name+" status"]; n != 1 {
			t.Errorf("%s was asked %d times", name, n)
		}
	}
	if c.most > 32 || len(c.ran) != nodes {
		t.Errorf("%d nodes were asked at the same time, %d in all", c.most, len(c.ran))
	}
}
