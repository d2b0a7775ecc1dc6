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
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/exec"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
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
		"the shadow mode": {node("b", func(n *testNode) {
			n.status = statusOf(func(s *peer.Status) {
				s.Ready, s.Healthy, s.Shadow = true, true, &peer.Shadow{Differences: 2}
			})
		}), "the shadow mode, which serves nothing: 2 differences from kube-proxy"},
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
		rows, err := c.check(t.Context(), members)
		if err != nil {
			t.Fatal(err)
		}
		err = rows.write(&out)
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

// TestCheckAfterwards: when kube-nft serves on all nodes, check says so, and does not send one to stop kube-proxy.
func TestCheckAfterwards(t *testing.T) {
	serving := func(foreign ...string) func(*testNode) {
		return func(n *testNode) {
			s := statusOf(func(s *peer.Status) { s.Ready, s.Healthy = true, true })
			s.ForeignProxy, n.status = foreign, s
		}
	}
	for name, tt := range map[string]struct {
		b    func(*testNode)
		want string
	}{
		"all serve":            {serving(), "\ngo: kube-nft serves on 2 nodes\n"},
		"rules of kube-proxy":  {serving("table ip kube-proxy"), "\ngo: kube-nft is ready on 2 nodes; kube-proxy may stop\n"},
		"one waits for an end": {nil, "\ngo: kube-nft is ready on 2 nodes; kube-proxy may stop\n"},
	} {
		c := newCluster(node("a", serving()), node("b", tt.b))
		members, err := c.members(t.Context(), nil, "")
		if err != nil {
			t.Fatal(err)
		}
		rows, err := c.check(t.Context(), members)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := rows.write(&out); err != nil || !strings.HasSuffix(out.String(), tt.want) {
			t.Errorf("%s: %v\n%s", name, err, &out)
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
	rows, err := c.statuses(t.Context(), members)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeStatuses(&out, rows, false, time.Now()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{
		"NODE", "healthy; table inet filter, chain forward refuses connections to endpoints", "dial: refused",
		"has not synced", "", "kube-nft serves on 1 of 3 nodes", "without an answer: b", "not serving: c",
	} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %q, want %q", i, lines[i], want)
		}
	}
	if !strings.Contains(lines[1], "  7         25         ") {
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
	rows, err := c.statuses(t.Context(), members)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.State != "no answer within 100ms" {
			t.Errorf("%s: %s", r.Node, r.State)
		}
	}
	if most > c.parallel {
		t.Errorf("%d nodes were asked at the same time, want %d at most", most, c.parallel)
	}
}

// TestSilentNode: a node that does not answer is given up after one timeout, also by a connection that nothing
// interrupts.
func TestSilentNode(t *testing.T) {
	c := newCluster(node("a", nil))
	c.timeout = 100 * time.Millisecond
	asked := 0
	c.run = func(ctx context.Context, pod *corev1.Pod, args []string) ([]byte, error) {
		asked++
		return c.stream.collect(ctx, pod, args)
	}
	c.stream = func(context.Context, *corev1.Pod, []string, io.Reader, io.Writer, io.Writer) error {
		<-t.Context().Done() // not that of the question
		return t.Context().Err()
	}
	members, err := c.members(t.Context(), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	r := &report{cluster: c, members: members, at: time.Now()}
	if err := r.collect(t.Context()); err != nil || asked != 1 {
		t.Errorf("bugreport asked %d times, error %v; want once, none", asked, err)
	}
	const want = "no answer within 100ms"
	c.follow(t.Context(), members, []string{"flows"}, nil, nil, func(a answer) {
		if a.Problem != want {
			t.Errorf("flows: %q, want %q", a.Problem, want)
		}
	})
	stopped, stop := context.WithCancel(t.Context())
	c.timeout = time.Hour
	stop()
	c.follow(stopped, members, []string{"flows"}, nil, nil, func(a answer) {
		if a.Problem != "" {
			t.Errorf("flows, interrupted: %q, want no problem", a.Problem)
		}
	})
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

// prints returns a node whose commands print texts and exit with 0.
func prints(name string, printed map[string]string) testNode {
	return node(name, func(n *testNode) { n.printed = printed })
}

// TestExplain: the node where a connection begins answers, or all nodes, in groups of the same answer.
func TestExplain(t *testing.T) {
	const command = "explain "
	said := func(name, address, text string) testNode {
		n := prints(name, map[string]string{command: text})
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
	answers, err := c.answers(t.Context(), members, []string{"explain", "203.0.113.5", "shop/web"})
	if err != nil {
		t.Fatal(err)
	}
	err = writeGroups(&out, answers)
	const want = "2 nodes (a, c), as a says:\ngoes to web\n\nEndpoints  on a\n\nb:\nis dropped\n\nd: refused\n"
	if err == nil || out.String() != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, &out, want)
	}
}

// TestDiff: operations of a node, and nodes that do not have what most have. Endpoints may differ between zones.
func TestDiff(t *testing.T) {
	withDigests := func(name, zone, frontends, endpoints, diff string, lists map[string]string) testNode {
		n := prints(name, map[string]string{"diff": diff})
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
	frozen := withDigests("f", "one", "f", "e", "flush chain ip kube-nft services\n", most)
	frozen.status = inspect.Status{
		Daemon: inspect.DaemonStatus{Problems: []string{"the running kube-nft does not answer"}},
	}
	c := newCluster(frozen,
		withDigests("a", "one", "f", "e", "", most), withDigests("b", "one", "f", "e", "add element ip kube-nft\n", most),
		withDigests("c", "one", "f", "other", "", map[string]string{"get endpoints": list("10.0.0.1:80", "10.0.0.3:80")}),
		withDigests("d", "two", "f", "of zone two", "", nil),
		node("e", func(n *testNode) { n.failure = errors.New("refused") }))
	members, err := c.members(t.Context(), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := c.diff(t.Context(), members)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := writeDiffs(&out, rows); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"a     0      as the API server says", "b     1      differs from the API server",
		"c     0      as the API server says; differs from a", "d     0      as the API server says\n",
		"e     -      refused", "f     -      not reached: the running kube-nft does not answer",
		"b would do:\n  add element ip kube-nft", "c has more (+) or less (-) than a:\n" +
			"  - shop/web:http at 10.96.0.1:80/tcp: 10.0.0.2:80\n  + shop/web:http at 10.96.0.1:80/tcp: 10.0.0.3:80\n",
		"2 of 6 nodes differ; nothing is known of 2",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q:\n%s", want, &out)
		}
	}
	if err := resultOf(rows); err == nil || errors.Is(err, inspect.ErrDiffers) {
		t.Errorf("a node without an answer: %v", err)
	}
	if err := resultOf(rows[:4]); !errors.Is(err, inspect.ErrDiffers) {
		t.Errorf("a difference: %v", err)
	}
	if err := resultOf(rows[:1]); err != nil {
		t.Errorf("no difference: %v", err)
	}
}

// TestTables: the tables of all nodes are one, also if their columns have other widths, or one has more columns.
func TestTables(t *testing.T) {
	var out strings.Builder
	err := writeTables(&out, []answer{
		{Node: "a", Text: "SERVICE  NOTE     EP\nweb      é b      1\ndb       -        2\n"},
		{Node: "worker-1", Text: "SERVICE   NOTE  SHARE  EP\nlong/web  x     7%     1\n"},
		{Node: "c", Problem: "refused"}, {Node: "d"}}, "share")
	const want = "NODE      SERVICE   NOTE  EP  SHARE\na         web       é b   1   -\n" +
		"a         db        -     2   -\nworker-1  long/web  x     1   7%\n"
	if err != nil || out.String() != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, &out, want)
	}
}

// TestTablesSorted: rows of all nodes are sorted together.
func TestTablesSorted(t *testing.T) {
	answers := []answer{{Node: "a", Text: "SERVICE  EP\nweb      10\ndb       2\n"},
		{Node: "b", Text: "SERVICE  EP\nweb  -\n"}}
	for by, want := range map[string]string{
		"ep": "b web - a db 2 a web 10", "SERVICE": "a db 2 a web 10 b web -", "node": "a web 10 a db 2 b web -",
	} {
		var out strings.Builder
		err := writeTables(&out, answers, by)
		_, rows, _ := strings.Cut(out.String(), "\n")
		if got := strings.Join(strings.Fields(rows), " "); err != nil || got != want {
			t.Errorf("by %s: %v, %q, want %q", by, err, got, want)
		}
	}
	if err := writeTables(io.Discard, answers, "age"); err == nil ||
		err.Error() != "--sort-by age: expected node, service or ep" {
		t.Errorf("another column: %v", err)
	}
}

// TestLines: lines arrive whole, however they are cut. A line in many small parts is not copied again for each part,
// and one that does not end is refused.
func TestLines(t *testing.T) {
	const text = "one\n\nthree is longer\nfour"
	for size := 1; size <= len(text); size++ {
		var got []string
		l := &lines{add: func(line []byte) error { got = append(got, string(line)); return nil }}
		for part := range slices.Chunk([]byte(text), size) {
			if n, err := l.Write(part); n != len(part) || err != nil {
				t.Fatalf("parts of %d: wrote %d, %v", size, n, err)
			}
		}
		if !slices.Equal(got, []string{"one", "", "three is longer"}) || string(l.rest) != "four" {
			t.Errorf("parts of %d: %q, rest %q", size, got, l.rest)
		}
	}
	l, part, grown := new(lines), bytes.Repeat([]byte("x"), 512), 0
	for n := 0; n < maxLine; n += len(part) {
		before := cap(l.rest)
		if _, err := l.Write(part); err != nil {
			t.Fatal(err)
		}
		if cap(l.rest) != before {
			grown++
		}
	}
	if grown > 100 { // of 16,384 parts
		t.Errorf("the line was copied %d times", grown)
	}
	if _, err := l.Write(part); err == nil || err.Error() != "a document is longer than 8 MiB" {
		t.Errorf("a longer line: %v", err)
	}
}

// TestMerger: events of all nodes come in the order of their times, also if one comes late, and no more than asked for.
func TestMerger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		lost := func(after time.Duration, n int) []byte {
			text, err := json.Marshal(&inspect.LostConnections{TypeMeta: output.Kind("LostConnections"),
				Origin: inspect.Origin{Time: began.Add(after)}, Lost: uint64(n)})
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		var out strings.Builder
		m := &merger{form: &output.Form{Value: output.Text}, out: &out, head: "HEAD\n", width: 8, count: 3}
		ctx, stop := context.WithCancelCause(t.Context())
		go m.printLate(ctx, stop)
		for _, line := range []struct {
			node string
			text []byte
		}{{"a", lost(2*time.Second, 2)}, {"worker-1", lost(time.Second, 1)}, {"a", lost(3*time.Second, 3)}} {
			if err := m.add(line.node, line.text); err != nil {
				t.Fatal(err)
			}
		}
		if m.add("a", []byte("{}")) == nil || m.add("a", []byte("text")) == nil {
			t.Error("what is no event was added")
		}
		if out.Len() > 0 {
			t.Errorf("printed at once: %s", &out)
		}
		<-ctx.Done()
		if took := time.Since(began); took < mergeDelay || !errors.Is(context.Cause(ctx), errEnough) {
			t.Errorf("after %s: %v", took, context.Cause(ctx))
		}
		if err := m.add("a", lost(0, 4)); err != nil {
			t.Error(err)
		}
		if err := m.flush(time.Time{}); !errors.Is(err, errEnough) {
			t.Error(err)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			words := strings.Fields(line)
			got = append(got, strings.Join(words[:min(3, len(words))], " "))
		}
		text := func(node string, n int) string {
			return fmt.Sprintf("%s %s %d", node, began.Add(time.Duration(n)*time.Second).Format(time.TimeOnly), n)
		}
		want := []string{"NODE HEAD", text("worker-1", 1), text("a", 2), text("a", 3)}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestMergerIsBounded: long lines of a node are printed before they fill the memory, and the count of events is no
// problem of that node.
func TestMergerIsBounded(t *testing.T) {
	m := &merger{form: &output.Form{Value: output.Text}, out: io.Discard, count: 3}
	line, err := json.Marshal(&inspect.LostConnections{TypeMeta: output.Kind("LostConnections")})
	if err != nil {
		t.Fatal(err)
	}
	line = append(line, strings.Repeat(" ", 1<<20)...)
	for range 100 {
		if err := m.add("a", line); err != nil {
			t.Fatal(err)
		}
		if len(m.waiting)<<20 > maxWaiting {
			t.Fatalf("%d lines of a MiB wait", len(m.waiting))
		}
	}
	if err := m.flush(time.Time{}); !errors.Is(err, errEnough) || m.size != 0 {
		t.Errorf("%v, %d bytes held", err, m.size)
	}
}

// TestCountOfDocuments: the last document that was asked for ends the command, and not the one after it.
func TestCountOfDocuments(t *testing.T) {
	var out strings.Builder
	m := &merger{form: &output.Form{Value: output.JSON}, out: &out, count: 2}
	for range 2 {
		if err := m.flush(time.Time{}); err != nil {
			t.Errorf("before the last one: %v", err)
		}
		if err := m.add("a", []byte(`{"kind":"LostConnections"}`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.flush(time.Time{}); !errors.Is(err, errEnough) || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("%v after %s", err, &out)
	}
}

// TestTail: of a log without an end, the last part is kept.
func TestTail(t *testing.T) {
	var log tail
	for n := range 20 * logBytes / 16 {
		fmt.Fprintf(&log, "line %10d\n", n)
		if len(log.text) > 4*logBytes {
			t.Fatalf("%d bytes are kept", len(log.text))
		}
	}
	log.cut()
	if want := fmt.Sprintf("line %10d\n", 20*logBytes/16-1); len(log.text) != logBytes || !log.long ||
		!strings.HasSuffix(string(log.text), want) {
		t.Errorf("%d bytes, long %v", len(log.text), log.long)
	}
}

// TestBugReport: the archive has the state of all nodes, no secret and no address of a client unless it is asked for;
// its list is true; and it does not grow beyond its bound.
func TestBugReport(t *testing.T) {
	const secret, client = "hunter2", "203.0.113.77"
	random := make([]byte, maxReportFile+5)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random) // it never fails
	facts, err := json.Marshal(&inspect.Facts{Kernel: inspect.KernelFacts{Release: "6.1.0"},
		Metrics: "kube_nft_elements 7\n", Ruleset: "table ip kube-nft {\n}\n"})
	if err != nil {
		t.Fatal(err)
	}
	diff := "add element ip kube-nft allowed-24 { 7 . " + client + " }\nadd element ip kube-nft services { 10.96.0.80 }\n"
	c := newCluster(
		node("a", func(n *testNode) {
			n.printed = map[string]string{"diff": diff, "get services": "the Services of a", "get endpoints": string(random),
				"facts": string(facts), "get affinity": client}
			n.pods[0].Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: secret}
			n.pods[0].Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "me:" + secret}}}}
			n.pods[0].Status.ContainerStatuses[0].RestartCount = 1
		}),
		node("b", func(n *testNode) { n.failure = errors.New("refused") }),
		prints("c", map[string]string{"diff": "", "get services": string(random[:6<<20]), "get endpoints": "x"}),
		node("d", func(n *testNode) { n.pods = nil }))
	nodes := c.client.CoreV1().Nodes()
	a, err := nodes.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a.Annotations = map[string]string{"k3s.io/node-args": "--token " + secret}
	if _, err := nodes.Update(t.Context(), a, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, event := range []corev1.Event{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "1"}, ReportingController: "kube-nft",
			Message: "of kube-nft"},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "2"}, ReportingController: "other", Message: "of others"},
	} {
		if _, err := c.client.CoreV1().Events("shop").Create(t.Context(), &event, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	api := c.client.(*fake.Clientset)
	api.PrependReactor("list", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		more := &corev1.EventList{ListMeta: metav1.ListMeta{Continue: "more"}}
		return a.GetNamespace() == metav1.NamespaceDefault, more, nil
	})
	members, err := c.members(t.Context(), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, clients := range []bool{false, true} {
		r := &report{cluster: c, members: members, clients: clients, at: time.Now()}
		if err := r.collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if nodes := fmt.Sprint(len(r.problems), r.problems); !strings.HasPrefix(nodes, "2 ") ||
			!strings.Contains(nodes, "{b ") || !strings.Contains(nodes, "{d ") {
			t.Errorf("problems %s", nodes)
		}
		var out bytes.Buffer
		if err := r.write(&out); err != nil || out.Len() > maxArchive {
			t.Fatalf("%d bytes, %v", out.Len(), err)
		}
		held := unpack(t, &out)
		contents := held["CONTENTS.txt"]
		for _, want := range []string{
			"events.yaml  not read: events beyond the first 2000 of namespace default\n",
			"no answer from b: status -o json: refused\n", "no answer from d: no pod of kube-nft",
			"        0  nodes/b/status.json  no answer: refused",
			"        0  nodes/a/endpoints.json  left out: the archive would be larger than 10 MiB",
			fmt.Sprintf("%9d  nodes/c/services.json", 6<<20),
		} {
			if !strings.Contains(contents, want) {
				t.Errorf("the list lacks %q:\n%s", want, contents)
			}
		}
		listed := make(map[string]bool)
		for line := range strings.Lines(contents) {
			var size int
			var name string
			if n, _ := fmt.Sscanf(line, "%d %s", &size, &name); n == 2 {
				listed[name] = true
				if len(held[name]) != size {
					t.Errorf("%s has %d bytes, listed as %d", name, len(held[name]), size)
				}
			}
		}
		all := ""
		for name, text := range held {
			if name != "CONTENTS.txt" && !listed[name] {
				t.Errorf("%s is not listed", name)
			}
			all += text
		}
		if strings.Contains(all, secret) || strings.Contains(all, client) != clients || strings.Contains(all, "of others") {
			t.Errorf("with clients %t: secret %t, client %t, other events %t", clients, strings.Contains(all, secret),
				strings.Contains(all, client), strings.Contains(all, "of others"))
		}
		for name, want := range map[string]string{
			"nodes/a/services.json": "the Services of a", "nodes/a/log.txt": "fake logs", "nodes/a/log-before.txt": "fake logs",
			"nodes.yaml": "name: a", "pods.yaml": "HTTPS_PROXY", "events.yaml": "of kube-nft", "daemonsets.yaml": "null",
			"nodes/a/metrics.txt": "kube_nft_elements 7", "nodes/a/ruleset.nft": "table ip kube-nft {",
			"nodes/a/facts.json": "6.1.0", "nodes/a/diff.txt": "services { 10.96.0.80 }",
			"nodes/a/plan.json": "", "nodes/a/version.json": "", "nodes/a/status.json": "",
		} {
			if text, ok := held[name]; !ok || !strings.Contains(text, want) {
				t.Errorf("%s: %.200q, want %q", name, text, want)
			}
		}
		if _, ok := held["nodes/a/affinity.json"]; ok != clients {
			t.Errorf("with clients %t: affinity is there: %t", clients, ok)
		}
	}
}

// unpack returns the files of a report.
func unpack(t *testing.T, packed io.Reader) map[string]string {
	t.Helper()
	expanded, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	held := make(map[string]string)
	for archive := tar.NewReader(expanded); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return held
		}
		text, readErr := io.ReadAll(archive)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		held[strings.TrimPrefix(header.Name, "kube-nft-bugreport/")] = string(text)
	}
}

// TestWarnings: what several nodes warn of is one line, and names ten of them.
func TestWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		w := warnings{out: &out}
		for _, node := range []string{"g", "b", "c", "d", "e", "f", "a", "l", "k", "j", "i", "h"} {
			w.add(node, "full")
		}
		w.add("b", "empty")
		time.Sleep(mergeDelay)
		synctest.Wait()
		w.add("h", "full")
		w.flush()
		const want = "b: warning: empty\na, b, c, d, e, f, g, h, i, j, and 2 more: warning: full\nh: warning: full\n"
		if got := out.String(); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	})
}

// TestWarningsAreBounded: what nodes warn of without end does not wait for a second. It is all printed, once.
func TestWarningsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		w := warnings{out: &out}
		const size, n = 1 << 20, 2*maxWaiting/(1<<20) + 1
		for i := range n {
			w.add("a", fmt.Sprint(i)+strings.Repeat("x", size))
			if held := len(w.nodes); held*size > maxWaiting {
				t.Fatalf("%d warnings wait", held)
			}
		}
		for range 1000 {
			w.add("a", "again")
		}
		w.flush()
		if got := strings.Count(out.String(), "a: warning: "); got != n+1 || w.size != 0 {
			t.Errorf("%d lines, want %d; %d bytes wait", got, n+1, w.size)
		}
	})
}

// TestAnswersAreBounded: nodes whose answers are more than fits together have a problem, the others an answer.
func TestAnswersAreBounded(t *testing.T) {
	defer func(most int64) { maxAnswers = most }(maxAnswers)
	maxAnswers = 10
	c := newCluster(prints("a", map[string]string{"get": "long text"}),
		prints("b", map[string]string{"get": "too long"}), prints("c", map[string]string{"get": "."}))
	c.parallel = 1
	members, err := c.members(t.Context(), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	answers, err := c.answers(t.Context(), members, []string{"get"})
	if err != nil || answers[0].Text != "long text" || answers[2].Text != "." || answers[1].Text != "" ||
		answers[1].Problem != errTooMuch.Error() {
		t.Errorf("%+v, %v", answers, err)
	}
}
