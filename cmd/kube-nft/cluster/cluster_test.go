package cluster

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/util/exec"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/nft/firewall"
	"github.com/kube-nft/kube-nft/nft/migrate"
)

// A testNode is a node and what kube-nft answers there.
type testNode struct {
	name    string
	notice  string // why the node is not ready
	pods    []corev1.Pod
	status  any
	plan    any
	failure error             // of any command
	printed map[string]string // by the command's first words, what else it prints
	code    int               // of these commands
	labels  map[string]string
	address string
}

func node(name string, edit func(*testNode)) testNode {
	n := testNode{
		name: name, pods: []corev1.Pod{pod(name, "kube-nft-"+name, "")},
		status: statusOf(func(s *peer.Status) { s.AwaitsProxy = true }),
		plan: migrate.Plan{Ready: true, Complete: true,
			Checks: []migrate.Check{{Level: migrate.Warning, About: "kube-proxy", Found: "process on " + name}}},
	}
	if edit != nil {
		edit(&n)
	}
	return n
}

func statusOf(edit func(*peer.Status)) *inspect.Status {
	s := &inspect.Status{Daemon: inspect.DaemonStatus{Reached: true, Version: "v1", Status: &peer.Status{}}}
	edit(s.Daemon.Status)
	return s
}

// pod returns a pod of kube-nft; waiting is the reason why its container does not run.
func pod(nodeName, name, waiting string) corev1.Pod {
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	if waiting != "" {
		state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waiting, Message: "no such tag"}}
	}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: defaultNamespace,
			Labels: map[string]string{"app.kubernetes.io/name": "kube-nft"}},
		Spec:   corev1.PodSpec{NodeName: nodeName},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: container, State: state}}},
	}
}

// newCluster returns a cluster of these nodes.
func newCluster(nodes ...testNode) *cluster {
	objects := []runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "windows",
		Labels: map[string]string{corev1.LabelOSStable: "windows"}}}}
	answers := make(map[string]testNode)
	for _, n := range nodes {
		ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
		if n.notice != "" {
			ready.Status, ready.Message = corev1.ConditionUnknown, n.notice
		}
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: n.labels},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready},
				Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.address}}}})
		for i := range n.pods {
			objects = append(objects, &n.pods[i])
		}
		answers[n.name] = n
	}
	return &cluster{
		client: fake.NewClientset(objects...), namespace: defaultNamespace, timeout: time.Minute, parallel: 2,
		run: func(ctx context.Context, pod *corev1.Pod, args []string) ([]byte, error) {
			n := answers[pod.Spec.NodeName]
			if n.failure != nil {
				return nil, n.failure
			}
			for words, text := range n.printed {
				if strings.HasPrefix(strings.Join(args, " "), words) {
					if n.code != 0 {
						return []byte(text), exec.CodeExitError{Err: errors.New("exit"), Code: n.code}
					}
					return []byte(text), nil
				}
			}
			if args[0] == "status" {
				text, err := json.Marshal(n.status)
				return text, errors.Join(err, exec.CodeExitError{Err: errors.New("exit code 1"), Code: 1})
			}
			text, err := json.Marshal(n.plan)
			return text, err
		},
	}
}

// TestCheck: go only if every node has a pod that runs, a daemon that waits for kube-proxy or serves, and a plan
// without blocks; otherwise the node and the reason are named.
func TestCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		node testNode
		want string // in the row of the node; empty: go
	}{
		"waits for kube-proxy": {node("b", nil), ""},
		"serves": {node("b", func(n *testNode) {
			n.status = statusOf(func(s *peer.Status) { s.Ready, s.Healthy = true, true })
		}), ""},
		"no pod": {node("b", func(n *testNode) { n.pods = nil }), "no pod of kube-nft"},
		"node not ready": {node("b", func(n *testNode) { n.notice = "kubelet is gone" }),
			"the node is not ready: kubelet is gone"},
		"wrong image": {node("b", func(n *testNode) { n.pods = []corev1.Pod{pod("b", "x", "ImagePullBackOff")} }),
			"ImagePullBackOff: no such tag"},
		"wrong image in the init container": {node("b", func(n *testNode) {
			n.pods = []corev1.Pod{pod("b", "x", "PodInitializing")}
			n.pods[0].Status.InitContainerStatuses = pod("b", "x", "ErrImagePull").Status.ContainerStatuses
			n.pods[0].Status.InitContainerStatuses[0].Name = "sysctls"
		}), "ErrImagePull: no such tag"},
		"a newer pod that does not run": {node("b", func(n *testNode) {
			n.pods = append(n.pods, pod("b", "newer", "ImagePullBackOff"))
		}), "a newer pod, newer, does not run: ImagePullBackOff"},
		"no answer":  {node("b", func(n *testNode) { n.failure = errors.New("dial: refused") }), "dial: refused"},
		"other JSON": {node("b", func(n *testNode) { n.status = "hello" }), "exit code 1"},
		"no daemon": {node("b", func(n *testNode) {
			n.status = inspect.Status{Daemon: inspect.DaemonStatus{Problems: []string{"none runs"}}}
		}), "the daemon does not answer: none runs"},
		"waits for the API server": {node("b", func(n *testNode) {
			n.status = statusOf(func(s *peer.Status) { s.WaitingFor = "the API server" })
		}), "waits for the API server"},
		"unhealthy": {node("b", func(n *testNode) {
			n.status = statusOf(func(s *peer.Status) { s.Ready = true })
		}), "unhealthy"},
		"a trial": {node("b", func(n *testNode) {
			s := statusOf(func(s *peer.Status) { s.Ready, s.Healthy = true, true })
			s.Daemon.Settings = map[string]string{"service-proxy-name": "kube-nft"}
			n.status = s
		}), "a trial"},
		"blocks": {node("b", func(n *testNode) {
			n.plan = migrate.Plan{Complete: true, Checks: []migrate.Check{{Level: migrate.Blocks, About: "frontends"}}}
		}), "0 warnings, 1 block"},
		"incomplete plan": {node("b", func(n *testNode) { n.plan = migrate.Plan{Ready: true} }),
			"0 warnings, 0 blocks, incomplete"},
	} {
		c := newCluster(node("a", nil), tt.node, node("c", nil))
		members, err := c.members(t.Context(), nil, "")
		if err != nil || len(members) != 3 {
			t.Fatalf("%s: %d members, %v", name, len(members), err)
		}
		var out strings.Builder
		err = c.check(t.Context(), members).write(&out)
		text := out.String()
		switch {
		case tt.want == "":
			if err != nil || !strings.Contains(text, "\ngo: kube-nft is ready on 3 nodes") {
				t.Errorf("%s: %v, want go\n%s", name, err, text)
			}
			if !strings.Contains(text, "warning on a, b, c: kube-proxy: process on a") {
				t.Errorf("%s: the warnings are not one group\n%s", name, text)
			}
		case !errors.Is(err, ErrNoGo) || !strings.Contains(text, "\nno go: kube-nft is not ready to serve alone on b\n") ||
			!strings.Contains(strings.Split(text, "\n")[2], tt.want):
			t.Errorf("%s: %v, want %q in the row of b\n%s", name, err, tt.want, text)
		}
	}
}

// TestMembers: nodes are chosen by name, and a name that no node has is an error.
func TestMembers(t *testing.T) {
	c := newCluster(node("a", nil), node("b", nil))
	if members, err := c.members(t.Context(), []string{"b"}, ""); err != nil || len(members) != 1 {
		t.Errorf("one node: %v, %v", members, err)
	}
	for _, name := range []string{"typo", "windows"} {
		if _, err := c.members(t.Context(), []string{"b", name}, ""); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestStatuses: a node that does not answer has a row like the others, and does not count as served.
func TestStatuses(t *testing.T) {
	serves := func(n *testNode) {
		s := statusOf(func(s *peer.Status) { s.Ready, s.Healthy, s.NodeEligible = true, true, true })
		s.Tables = []inspect.TableStatus{{Services: 7, Endpoints: 20}, {Services: 3, Endpoints: 5}}
		s.Forward = []firewall.Finding{{Where: "table inet filter, chain forward"}}
		n.status = s
	}
	c := newCluster(node("a", serves), node("b", func(n *testNode) { n.failure = errors.New("dial: refused") }),
		node("c", nil))
	members, err := c.members(t.Context(), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := writeStatuses(&out, c.statuses(t.Context(), members), time.Now()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{
		"NODE", "healthy; table inet filter, chain forward refuses connections to endpoints", "dial: refused",
		"has not synced", "", "kube-nft serves on 1 of 3 nodes",
	} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %q, want %q", i, lines[i], want)
		}
	}
	if !strings.Contains(lines[1], "  7         25  ") {
		t.Errorf("Services and endpoints: %s", lines[1])
	}
}

// TestAskIsBounded: no more nodes than --parallel are asked at the same time, and one that never answers delays the
// command by --timeout.
func TestAskIsBounded(t *testing.T) {
	var nodes []testNode
	for _, name := range strings.Split("abcdefghijkl", "") {
		nodes = append(nodes, node(name, nil))
	}
	c := newCluster(nodes...)
	c.timeout, c.parallel = 100*time.Millisecond, 4
	var mu sync.Mutex
	now, most := 0, 0
	c.run = func(ctx context.Context, pod *corev1.Pod, args []string) ([]byte, error) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		<-ctx.Done()
		mu.Lock()
		now--
		mu.Unlock()
		return nil, ctx.Err()
	}
	members, err := c.members(t.Context(), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range c.statuses(t.Context(), members) {
		if r.State != "no answer within 100ms" {
			t.Errorf("%s: %s", r.Node, r.State)
		}
	}
	if most > c.parallel {
		t.Errorf("%d nodes were asked at the same time, want %d at most", most, c.parallel)
	}
}

// TestCheckWaits: with --wait, check looks again until a pod that starts runs; blocks end it at once.
func TestCheckWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(node("a", nil))
		starts := pod("a", "kube-nft-a", "ContainerCreating")
		_, err := c.client.CoreV1().Pods(defaultNamespace).Update(t.Context(), &starts, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(checkPause / 2)
			started := pod("a", "kube-nft-a", "")
			_, _ = c.client.CoreV1().Pods(defaultNamespace).Update(t.Context(), &started, metav1.UpdateOptions{})
		}()
		rows, err := c.checkUntil(t.Context(), time.Now().Add(time.Minute), nil, "", io.Discard)
		if err != nil || !rows[0].ready() {
			t.Errorf("a pod that starts: %+v, %v", rows, err)
		}
		c = newCluster(node("a", func(n *testNode) { n.plan = migrate.Plan{Complete: true} }))
		rows, err = c.checkUntil(t.Context(), time.Now().Add(time.Hour), nil, "", io.Discard)
		if err != nil || rows[0].ready() {
			t.Errorf("a plan with blocks: %+v, %v", rows, err)
		}
	})
}

// prints returns a node whose commands print texts; the exit code is 0 or 1.
func prints(name string, code int, printed map[string]string) testNode {
	return node(name, func(n *testNode) { n.printed, n.code = printed, code })
}

// TestExplain: the node where a connection begins answers, or all nodes, in groups of the same answer.
func TestExplain(t *testing.T) {
	const command = "explain "
	said := func(name, address, text string) testNode {
		n := prints(name, 0, map[string]string{command: text})
		n.address = address
		return n
	}
	c := newCluster(said("a", "192.168.0.1", "goes to web\n\nEndpoints  on a\n"), said("b", "192.168.0.2", "is dropped\n"),
		said("c", "192.168.0.3", "goes to web\n\nEndpoints  on c\n"),
		node("d", func(n *testNode) { n.failure = errors.New("refused") }))
	web := pod("b", "web", "")
	web.Namespace, web.Labels, web.Status.PodIPs = "shop", nil, []corev1.PodIP{{IP: "10.244.1.7"}, {IP: "fd44::7"}}
	if _, err := c.client.CoreV1().Pods("shop").Create(t.Context(), &web, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	members, err := c.members(t.Context(), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]string{
		"shop/web": "10.244.1.7 b []", "10.244.1.7": "10.244.1.7 b []", "b": "192.168.0.2 b [--from node]",
		"192.168.0.3": "192.168.0.3 c [--from node]", "203.0.113.5": "203.0.113.5  []",
		"shop/none": "error: there is no pod shop/none", "nobody": "error: no Linux node",
	} {
		from, err := c.origin(t.Context(), members, source, false)
		got := fmt.Sprintf("%s %s %v", from.address, from.node, from.flags)
		if err != nil {
			got = "error: " + err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %s, want %s", source, got, want)
		}
	}
	if from, err := c.origin(t.Context(), members, "shop/web", true); err != nil || from.address != "fd44::7" {
		t.Errorf("IPv6: %v, %v", from, err)
	}
	var out strings.Builder
	got := nodeOf(members, "192.168.0.2:30080/tcp") + nodeOf(members, "a:30080/tcp") + nodeOf(members, "shop/web:http")
	if got != "ba" {
		t.Errorf("nodes of destinations: %s", got)
	}
	err = writeGroups(&out, c.answers(t.Context(), members, []string{"explain", "203.0.113.5", "shop/web"}), essence)
	const want = "2 nodes (a, c), as a says:\ngoes to web\n\nEndpoints  on a\n\nb:\nis dropped\n\nd: refused\n"
	if err == nil || out.String() != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, &out, want)
	}
}

// TestDiff: operations of a node, and nodes that do not have what most have. Endpoints may differ between zones.
func TestDiff(t *testing.T) {
	withDigests := func(name, zone, frontends, endpoints, diff string, lists map[string]string) testNode {
		n := prints(name, 0, map[string]string{"diff": diff})
		if diff != "" {
			n.code = 1
		}
		for words, text := range lists {
			n.printed[words] = text
		}
		s := statusOf(func(*peer.Status) {})
		s.Tables = []inspect.TableStatus{{Family: "IPv4", FrontendsDigest: frontends, EndpointsDigest: endpoints}}
		n.status, n.labels = s, map[string]string{corev1.LabelTopologyZone: zone}
		return n
	}
	list := func(endpoints ...string) string {
		var items []string
		for _, ep := range endpoints {
			items = append(items, fmt.Sprintf(`{"namespace":"shop","name":"web","port":"http","frontend":"10.96.0.1:80/tcp",`+
				`"list":"cluster","endpoint":%q}`, ep))
		}
		return `{"items":[` + strings.Join(items, ",") + `]}`
	}
	most := map[string]string{"get endpoints": list("10.0.0.1:80", "10.0.0.2:80")}
	c := newCluster(
		withDigests("a", "one", "f", "e", "", most), withDigests("b", "one", "f", "e", "add element ip kube-nft\n", most),
		withDigests("c", "one", "f", "other", "", map[string]string{"get endpoints": list("10.0.0.1:80", "10.0.0.3:80")}),
		withDigests("d", "two", "f", "of zone two", "", nil),
		node("e", func(n *testNode) { n.failure = errors.New("refused") }))
	members, err := c.members(t.Context(), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	rows := c.diff(t.Context(), members)
	var out strings.Builder
	if err := writeDiffs(&out, rows); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"a     0      as the API server says", "b     1      differs from the API server",
		"c     0      as the API server says; differs from a", "d     0      as the API server says\n",
		"e     -      refused",
		"b would do:\n  add element ip kube-nft", "c has more (+) or less (-) than a:\n" +
			"  - shop/web:http at 10.96.0.1:80/tcp: 10.0.0.2:80\n  + shop/web:http at 10.96.0.1:80/tcp: 10.0.0.3:80\n",
		"3 of 5 nodes differ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q:\n%s", want, &out)
		}
	}
	if err := resultOf(rows); !errors.As(err, new(inspect.TroubleError)) {
		t.Errorf("a node without an answer: %v", err)
	}
	if err := resultOf(rows[:4]); !errors.Is(err, inspect.ErrDiffers) {
		t.Errorf("a difference: %v", err)
	}
	if err := resultOf(rows[:1]); err != nil {
		t.Errorf("no difference: %v", err)
	}
}

// TestTables: the tables of all nodes are one, with a headline for each width of columns.
func TestTables(t *testing.T) {
	var out strings.Builder
	err := writeTables(&out, []answer{{Node: "a", Text: "SERVICE  EP\nweb      1\ndb       2\n"},
		{Node: "worker-1", Text: "SERVICE  EP\nweb      1\n"}, {Node: "c", Problem: "refused"}})
	const want = "NODE      SERVICE  EP\na         web      1\na         db       2\nworker-1  web      1\n"
	if err != nil || out.String() != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, &out, want)
	}
}

// TestFollow: lines of all nodes come whole, with the node before each, and the commands end with the context.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(node("a", nil), node("worker-1", nil), node("c", func(n *testNode) { n.pods = nil }))
		ended := 0
		c.stream = func(_ context.Context, pod *corev1.Pod, _ []string, stdin io.Reader, stdout io.Writer) error {
			for _, part := range []string{"one ", "line\nand ", "another\n"} {
				if _, err := io.WriteString(stdout, part); err != nil {
					return err
				}
			}
			_, err := io.Copy(io.Discard, stdin)
			ended++
			return err
		}
		members, err := c.members(t.Context(), nil, "")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Second)
			stop()
		}()
		var out strings.Builder
		problems := c.follow(ctx, members, []string{"trace"}, &out)
		if ended != 2 || len(problems) != 1 || problems[0].Node != "c" {
			t.Errorf("%d commands have ended, problems %v", ended, problems)
		}
		got := strings.Split(strings.TrimSpace(out.String()), "\n")
		slices.Sort(got)
		want := []string{"a         and another", "a         one line", "worker-1  and another", "worker-1  one line"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestBugReport: the archive has the state of all nodes, lists what it lacks, and does not grow beyond its bound.
func TestBugReport(t *testing.T) {
	random := make([]byte, maxReportFile+5)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random) // it never fails
	c := newCluster(
		node("a", func(n *testNode) {
			n.printed = map[string]string{"diff": "", "get services": "the Services of a", "get endpoints": string(random)}
			n.pods[0].Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "hunter2"}
			n.pods[0].Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "me:hunter2@x"}}}}
		}),
		node("b", func(n *testNode) { n.failure = errors.New("refused") }),
		prints("c", 0, map[string]string{"diff": "", "get services": string(random[:2<<20]), "get endpoints": "x"}))
	members, err := c.members(t.Context(), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	files, problems := c.collectReport(t.Context(), members)
	if len(problems) != 1 || problems[0].Node != "b" {
		t.Errorf("problems %v", problems)
	}
	var out bytes.Buffer
	if err := writeArchive(&out, files, time.Now()); err != nil || out.Len() > maxArchive {
		t.Fatalf("%d bytes, %v", out.Len(), err)
	}
	expanded, err := gzip.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	held := make(map[string]string)
	for archive := tar.NewReader(expanded); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		text, readErr := io.ReadAll(archive)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		held[strings.TrimPrefix(header.Name, "kube-nft-bugreport/")] = string(text)
	}
	contents := held["CONTENTS.txt"]
	for _, want := range []string{
		"nodes/b/status.json  no answer: refused", "nodes/a/endpoints.json  left out: the archive would be larger",
		fmt.Sprintf("%9d  nodes/c/services.json", 2<<20), "nodes.yaml", "pods.yaml", "daemonsets.yaml", "events.yaml",
		"nodes/a/log.txt",
	} {
		if !strings.Contains(contents, want) {
			t.Errorf("the list lacks %q:\n%s", want, contents)
		}
	}
	if strings.Contains(held["pods.yaml"], "hunter2") || !strings.Contains(held["pods.yaml"], "HTTPS_PROXY") {
		t.Errorf("pods:\n%s", held["pods.yaml"])
	}
	if held["nodes/a/services.json"] != "the Services of a" || held["nodes/a/log.txt"] != "fake logs" ||
		!strings.Contains(held["nodes.yaml"], "name: a") {
		t.Errorf("files %q", slices.Sorted(maps.Keys(held)))
	}
}
