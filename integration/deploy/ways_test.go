package deploy

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// A cluster is what the commands of the pages change: which of the two DaemonSets runs where. It knows
// what a pod of kube-nft does: it waits for kube-proxy to end, and its tables stay when it ends.
type cluster struct {
	t     *testing.T
	sets  map[string]map[string]any // DaemonSets by name, as JSON
	nodes []*clusterNode
	// restarts says that the pods of kube-proxy are being replaced, one after the other: their template
	// was changed, and they are not left alone until a command deletes them.
	restarts bool
	// wrongImage says that no pod of kube-nft starts. pasted says that commands go on after one that refuses.
	wrongImage, pasted bool
}

type clusterNode struct {
	name               string
	labels             labels.Set
	down               bool
	proxy              bool
	waits, serves      bool // the pod of kube-nft, before or after kube-proxy's end
	tables, overlooked bool // our tables are in force; no proxy has run here for a command
}

// newCluster has kube-proxy as kubeadm makes it.
func newCluster(t *testing.T) *cluster {
	spec := map[string]any{"nodeSelector": map[string]any{"kubernetes.io/os": "linux"}}
	template := map[string]any{"spec": spec}
	c := &cluster{t: t,
		sets: map[string]map[string]any{"kube-proxy": {"spec": map[string]any{"template": template}}}}
	for _, name := range []string{"worker-1", "worker-2", "worker-3"} {
		c.add(name)
	}
	return c
}

func (c *cluster) add(name string) {
	c.nodes = append(c.nodes, &clusterNode{name: name, labels: labels.Set{"kubernetes.io/os": "linux"}})
	c.reconcile("node " + name)
}

// set decodes a DaemonSet; nil if there is none.
func (c *cluster) set(name string) *appsv1.DaemonSet {
	if c.sets[name] == nil {
		return nil
	}
	text, err := json.Marshal(c.sets[name])
	set := new(appsv1.DaemonSet)
	if err == nil {
		err = json.Unmarshal(text, set)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return set
}

// runsOn reports whether a DaemonSet has a pod on a node.
func runsOn(set *appsv1.DaemonSet, node *clusterNode) bool {
	if set == nil || !labels.SelectorFromSet(set.Spec.Template.Spec.NodeSelector).Matches(node.labels) {
		return false
	}
	affinity := set.Spec.Template.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil {
		return true
	}
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		matches := true
		for _, e := range term.MatchExpressions {
			operator := map[corev1.NodeSelectorOperator]selection.Operator{corev1.NodeSelectorOpIn: selection.In,
				corev1.NodeSelectorOpNotIn: selection.NotIn}[e.Operator]
			requirement, err := labels.NewRequirement(e.Key, operator, e.Values)
			matches = matches && err == nil && requirement.Matches(node.labels)
		}
		if matches {
			return true
		}
	}
	return false
}

// reconcile does what the DaemonSets ask for, and fails the test if both proxies serve a node, or none.
func (c *cluster) reconcile(after string) {
	c.t.Helper()
	proxy, ours := c.set("kube-proxy"), c.set("kube-nft")
	trial := isTrial(ours)
	for _, n := range c.nodes {
		if n.down {
			continue
		}
		had := n.proxy || n.serves
		n.proxy = runsOn(proxy, n)
		present := runsOn(ours, n) && !c.wrongImage
		n.waits = present && !n.serves && !trial
		if n.serves = present && n.serves; n.waits && !n.proxy {
			n.waits, n.serves, n.tables = false, true, true
		}
		n.tables = n.tables || present && trial
		switch {
		case n.waits && n.proxy && c.restarts:
			c.t.Fatalf("after %.120s: kube-proxy is restarted on %s, and kube-nft, which waits for its end, takes over",
				after, n.name)
		case n.serves && n.proxy:
			c.t.Fatalf("after %.120s: both proxies run on %s", after, n.name)
		case !n.serves && !n.proxy && (n.overlooked || !had || !n.tables):
			c.t.Fatalf("after %.120s: no proxy runs on %s", after, n.name)
		}
		n.overlooked = !n.serves && !n.proxy // one command may end one proxy, the next starts the other
	}
}

// isTrial reports whether a DaemonSet of kube-nft serves only Services with a label.
func isTrial(ours *appsv1.DaemonSet) bool {
	return ours != nil && strings.Contains(strings.Join(ours.Spec.Template.Spec.Containers[0].Args, " "),
		"--service-proxy-name")
}

// opens reports whether a gate lets the command behind it run.
func (c *cluster) opens(m []string) bool {
	trial := isTrial(c.set("kube-nft"))
	if m[3] != "" {
		return !c.wrongImage
	}
	for _, n := range c.nodes {
		switch {
		case m[2] != "": // the rollout is complete: no older kube-nft is left, and each node has a pod
			if !trial || n.serves || n.down || c.wrongImage {
				return false
			}
		case m[1] == "" || m[1] == n.name:
			if n.down || !n.waits && !n.serves {
				return false
			}
		}
	}
	return true
}

// mergePatch applies a JSON merge patch (RFC 7396).
func mergePatch(to, patch map[string]any) {
	for name, value := range patch {
		inner, isObject := value.(map[string]any)
		if value == nil {
			delete(to, name)
			continue
		}
		if !isObject {
			to[name] = value
			continue
		}
		below, ok := to[name].(map[string]any)
		if !ok {
			below = map[string]any{}
			to[name] = below
		}
		mergePatch(below, inner)
	}
}

var (
	patchCommand  = regexp.MustCompile(`^kubectl -n kube-system patch daemonset (\S+) --type merge\s+-p '(.*)'$`)
	applyCommand  = regexp.MustCompile(`^kubectl apply -k deploy/(\S+)$`)
	deleteCommand = regexp.MustCompile(
		`^kubectl (?:-n kube-system delete daemonset kube-nft|delete -k deploy/\S+ --ignore-not-found)$`)
	// absent begins a command that runs only if no kube-nft is installed.
	absent = regexp.MustCompile(`^! kubectl -n kube-system get daemonset kube-nft &&\s+`)
	// gate begins a command that runs only if kube-nft waits for kube-proxy's end on the nodes, if a trial's
	// rollout is complete, or if the node can run the new image.
	gate = regexp.MustCompile(`^kubectl (?:kube-nft check ?(worker-\d)?(?: --wait 5m)?` +
		`|-n kube-system (rollout status daemonset kube-nft) --timeout 5m` +
		`|-n kube-system (wait pod/try-v2) --for=jsonpath='{.status.phase}'=Succeeded --timeout=2m) &&\s+`)
	labelCommand = regexp.MustCompile(
		`^kubectl label (--overwrite )?nodes? (\S+|-l '!service-proxy') service-proxy(?:=(\S+)|-)$`)
	rollbackPod = regexp.MustCompile(
		`^kubectl -n kube-system run rollback-(\S+) .*"args":\["migrate","rollback","--wait"\]`)
	rollbackSeen = regexp.MustCompile(`^kubectl -n kube-system (?:wait pod/|logs |delete pod )rollback-`)
	trialCommand = regexp.MustCompile(`^kubectl -n shop label service web service\.kubernetes\.io/service-proxy-name=`)
	// looks are commands that change no node, or only a pod of kube-nft, whose rules stay.
	looks = regexp.MustCompile(`^kubectl (?:kube-nft status|-n kube-system (?:rollout status|exec|get pods|` +
		`create configmap kube-nft-api-server|set image daemonset/kube-nft|` +
		`(?:run|delete pod) try-v2) ?)`)
)

// run does what commands of the pages do. Those about Services change no node.
func (c *cluster) run(commands ...string) {
	c.t.Helper()
	for _, given := range commands {
		command := given
		if first := absent.FindString(command); first != "" {
			if c.sets["kube-nft"] != nil {
				continue
			}
			apply, rest, _ := strings.Cut(strings.TrimPrefix(command, first), " && ")
			c.run(apply, strings.TrimSpace(rest))
			continue
		}
		if m := gate.FindStringSubmatch(command); m != nil {
			if !c.opens(m) && c.pasted {
				continue
			}
			if command = strings.TrimPrefix(command, m[0]); !c.opens(m) {
				c.t.Fatalf("%s: not on each node is a pod of kube-nft that is ready for it", given)
			}
		}
		if strings.Contains(command, "delete pod -l ") && !gate.MatchString(given) {
			c.t.Errorf("%s: the node may not have the new image, and its health checks fail without a pod", command)
		}
		if m := patchCommand.FindStringSubmatch(command); m != nil {
			var patch map[string]any
			if err := json.Unmarshal([]byte(m[2]), &patch); err != nil || c.sets[m[1]] == nil {
				c.t.Fatalf("%s: %v", command, err)
			}
			if strings.Contains(m[2], `"disabled"`) && !gate.MatchString(given) {
				c.t.Errorf("%s: no check before kube-proxy stops", command)
			}
			mergePatch(c.sets[m[1]], patch)
			c.restarts = c.restarts || m[1] == "kube-proxy" &&
				c.set("kube-proxy").Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType
		} else if m := applyCommand.FindStringSubmatch(command); m != nil {
			set, _ := kustomize(c.t, "../../deploy/"+m[1]).daemonSet(c.t)
			text, err := json.Marshal(set)
			fresh := map[string]any{}
			if err == nil {
				err = json.Unmarshal(text, &fresh)
			}
			if err != nil {
				c.t.Fatalf("%s: %v", command, err)
			}
			served := c.set("kube-nft")
			c.sets["kube-nft"] = fresh
			if isTrial(c.set("kube-nft")) && served != nil && !isTrial(served) {
				c.t.Errorf("%s: where a pod is replaced, the trial removes what kube-nft serves there", command)
			}
		} else if deleteCommand.MatchString(command) {
			delete(c.sets, "kube-nft")
		} else if m := labelCommand.FindStringSubmatch(command); m != nil {
			for _, n := range c.nodes {
				switch {
				case m[2] != "--all" && m[2] != n.name && (m[2] != "-l '!service-proxy'" || n.labels.Has("service-proxy")):
				case m[3] == "":
					delete(n.labels, "service-proxy")
				case m[1] == "" && n.labels.Has("service-proxy"): // kubectl refuses
				default:
					n.labels["service-proxy"] = m[3]
				}
			}
		} else if m := rollbackPod.FindStringSubmatch(command); m != nil {
			for _, n := range c.nodes {
				if n.name == m[1] && (!n.proxy || n.serves) {
					c.t.Errorf("rollback on %s waits: kube-proxy runs %v, kube-nft runs %v", n.name, n.proxy, n.serves)
				} else if n.name == m[1] {
					n.tables = false
				}
			}
		} else if trialCommand.MatchString(command) {
			if !c.opens([]string{"", "", "a rollout", ""}) {
				c.t.Errorf("%s: kube-proxy serves the Service no more, and not on each node does kube-nft", given)
			}
		} else if !strings.HasPrefix(command, "kubectl label services ") && !rollbackSeen.MatchString(command) &&
			!looks.MatchString(command) {
			c.t.Fatalf("the test does not know %s", command)
		}
		c.reconcile(command)
	}
}

// back rolls nodes back, and checks that kube-proxy alone is there in the end.
func (c *cluster) back(pages string) {
	c.t.Helper()
	for _, n := range c.nodes {
		c.run(onNode(block(c.t, pages, "## Back to kube-proxy", "run rollback-"), n.name)...)
	}
	c.run(block(c.t, pages, "## Back to kube-proxy", "delete -k")...)
	for _, n := range c.nodes {
		if !n.proxy || n.waits || n.serves || n.tables || n.labels.Has("service-proxy") {
			c.t.Errorf("in the end: %+v", *n)
		}
	}
	if set := c.set("kube-proxy"); set.Spec.Template.Spec.Affinity != nil ||
		len(set.Spec.Template.Spec.NodeSelector) != 1 ||
		set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType {
		c.t.Errorf("kube-proxy is left with %+v", set.Spec)
	}
}

// blocks returns the commands of each code block in a section of the pages, without those that show an output.
func blocks(pages, section string) (list [][]string) {
	_, rest, _ := strings.Cut(pages, "\n"+section+"\n")
	rest, _, _ = strings.Cut(rest, "\n"+strings.Repeat("#", strings.Count(section, "#"))+" ")
	for i, part := range strings.Split(rest, "```") {
		if i%2 == 1 && !strings.HasPrefix(part, "\n$ ") {
			joined := strings.ReplaceAll(part, "\\\n", "")
			list = append(list, slices.DeleteFunc(strings.Split(joined, "\n"), func(line string) bool { return line == "" }))
		}
	}
	return list
}

// block returns the commands of the code block in a section of the pages that has a text.
func block(t *testing.T, pages, section, text string) []string {
	t.Helper()
	for _, commands := range blocks(pages, section) {
		if strings.Contains(strings.Join(commands, "\n"), text) {
			return commands
		}
	}
	t.Fatalf("the pages' %q has no block with %q", section, text)
	return nil
}

// onNode are commands for another node than worker-1.
func onNode(commands []string, node string) (list []string) {
	for _, c := range commands {
		list = append(list, strings.ReplaceAll(c, "worker-1", node))
	}
	return list
}

// TestInstallAndMigrationPages follows every procedure of the pages that leads to kube-nft in a cluster, and the
// way back: at no command do both proxies serve a node, and none is left behind.
func TestInstallAndMigrationPages(t *testing.T) {
	pages := string(readFile(t, "../../docs/install.md")) + string(readFile(t, "../../docs/migration.md"))
	const deploy, nodes, back = "## In a cluster", "## A kubeadm cluster, node by node", "## Back to kube-proxy"
	atOnce := func(c *cluster) { c.run(block(t, pages, deploy, "disabled")...) }
	byLabel := func(c *cluster) {
		for _, n := range c.nodes {
			c.run(onNode(block(t, pages, nodes, "service-proxy=next"), n.name)...)
		}
	}
	backByLabel := func(c *cluster) {
		for _, n := range c.nodes {
			c.run(onNode(block(t, pages, back, "label --overwrite"), n.name)...)
		}
		c.back(pages)
	}
	for _, way := range []struct {
		name string
		walk func(c *cluster)
	}{
		{"all at once", func(c *cluster) {
			atOnce(c)
			c.add("worker-4")
			c.run(block(t, pages, back, "delete daemonset kube-nft")...)
			c.back(pages)
		}},
		{"node by node", func(c *cluster) {
			c.run(block(t, pages, nodes, "OnDelete")...)
			c.add("worker-4")
			byLabel(c)
			backByLabel(c)
		}},
		{"node by node, then new nodes", func(c *cluster) {
			c.run(block(t, pages, nodes, "OnDelete")...)
			byLabel(c)
			c.run(block(t, pages, nodes, "disabled")...)
			c.add("worker-4")
			backByLabel(c)
		}},
		{"all at once, then labels", func(c *cluster) {
			atOnce(c)
			for _, text := range []string{"label nodes --all", "OnDelete", `"kube-proxy":null`} {
				c.run(block(t, pages, nodes, text)...)
			}
			backByLabel(c)
		}},
		{"a trial", func(c *cluster) {
			c.run("kubectl apply -k deploy/overlays/canary")
			c.run(block(t, pages, back, "label services")...)
			c.back(pages)
		}},
		{"a trial, then all at once", func(c *cluster) {
			c.run("kubectl apply -k deploy/overlays/canary")
			c.run(block(t, pages, nodes, "label services")...)
			c.run(block(t, pages, deploy, "disabled")[1])
			c.run(block(t, pages, back, "delete daemonset kube-nft")...)
			c.back(pages)
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			c := newCluster(t)
			way.walk(c)
			if t.Failed() {
				for _, n := range c.nodes {
					t.Logf("%+v", *n)
				}
			}
		})
	}
}

// TestInstallPagePasted pastes the commands that move a node, and all of the install page for kubectl, one after the
// other, as if skimming them: with an image that no node can pull, with a node that is down, and with both. On
// each node a proxy is left, and no Service is without one.
func TestInstallPagePasted(t *testing.T) {
	const nodes = "## A kubeadm cluster, node by node"
	page, migration := string(readFile(t, "../../docs/install.md")), string(readFile(t, "../../docs/migration.md"))
	commands := slices.Concat(block(t, migration, nodes, "OnDelete"), block(t, migration, nodes, "service-proxy=next"))
	for _, block := range blocks(page, "## In a cluster") {
		if strings.HasPrefix(strings.TrimPrefix(block[0], "! "), "kubectl ") {
			commands = append(commands, block...)
		}
	}
	for _, text := range []string{"OnDelete", "disabled", "deploy/base", "deploy/overlays/canary",
		"service-proxy=kube-nft", "service-proxy-name=kube-nft", "set image"} {
		if !slices.ContainsFunc(commands, func(c string) bool { return strings.Contains(c, text) }) {
			t.Errorf("no command has %s", text)
		}
	}
	for _, way := range []struct {
		name             string
		wrongImage, down bool
	}{
		{"all is well", false, false}, {"a wrong image", true, false}, {"a node is down", false, true},
		{"both", true, true},
	} {
		t.Run(way.name, func(t *testing.T) {
			c := newCluster(t)
			c.pasted, c.wrongImage, c.nodes[1].down = true, way.wrongImage, way.down
			for _, command := range commands {
				c.run(command)
			}
			for _, n := range c.nodes {
				if !n.proxy && !n.serves || way.wrongImage && !n.proxy {
					t.Errorf("in the end: %+v", *n)
				}
			}
		})
	}
}
