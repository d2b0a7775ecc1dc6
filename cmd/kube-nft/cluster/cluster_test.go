package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/nft/migrate"
)

// A testNode is a node and what kube-nft answers there.
type testNode struct {
	name    string
	notice  string // why the node is not ready
	pods    []corev1.Pod
	status  any
	plan    any
	failure error // of any command
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
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}}})
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
			if args[0] == "status" {
				text, err := json.Marshal(n.status)
				return text, errors.Join(err, errors.New("exit code 1")) // status has an answer all the same
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
		"NODE", "a     v1", "dial: refused", "has not synced", "", "kube-nft serves on 1 of 3 nodes",
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
