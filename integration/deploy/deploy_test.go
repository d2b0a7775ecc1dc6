package deploy

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/yaml"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
)

// overlays are the directories that are applied to clusters.
var overlays = []string{"base", "overlays/kubeadm", "overlays/kubeadm-labels", "overlays/canary",
	"overlays/shadow"}

// kubeadmConfig is where the overlay kubeadm mounts kube-proxy's ConfigMap, and an example
// of what is in there.
var kubeadmConfig = map[string]string{
	"/var/lib/kube-proxy/config.conf": "../../cmd/kube-nft/config/testdata/kubeadm.yaml",
}

// TestDeployObjects decodes every overlay strictly and looks at what matters for safety.
func TestDeployObjects(t *testing.T) {
	for _, overlay := range overlays {
		t.Run(overlay, func(t *testing.T) {
			objects := kustomize(t, "../../deploy/"+overlay)
			got := slices.Sorted(maps.Keys(objects))
			want := []string{"ClusterRole kube-nft", "ClusterRoleBinding kube-nft", "DaemonSet kube-nft",
				"ServiceAccount kube-nft"}
			if !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			set, container := objects.daemonSet(t)
			checkPod(t, set)
			checkPrivileges(t, container, "NET_ADMIN")
			checkProbes(t, container)
			checkSurge(t, set)
			if strings.HasPrefix(overlay, "overlays/kubeadm") {
				checkSeesProcesses(t, set, container)
			} else if !slices.ContainsFunc(container.Args, func(arg string) bool {
				return slices.Contains([]string{"--takeover=never", "--service-proxy-name=kube-nft", "--mode=shadow"}, arg)
			}) {
				t.Errorf("arguments %v: a takeover that does not see the node's processes", container.Args)
			}
			checkMounts(t, set, container, "/run/kube-nft", "/run/xtables.lock")
			checkBinding(t, objects)
			checkInit(t, set)
		})
	}
}

// TestDeployImage sets the image where docs/install.md says, in the directory that is applied, and
// looks for it in all containers.
func TestDeployImage(t *testing.T) {
	for _, overlay := range overlays {
		dir := "../../deploy/" + overlay
		k := readKustomization(t, dir)
		if overlay == "overlays/kubeadm-labels" { // it has the image of overlays/kubeadm, which renames ours
			if len(k.Images) != 0 {
				t.Errorf("%s: an image that would have no effect", overlay)
			}
			continue
		}
		if len(k.Images) != 1 {
			t.Errorf("%s: %d images, want one to set", overlay, len(k.Images))
			continue
		}
		k.Images[0].NewName, k.Images[0].NewTag = "registry.example/kube-nft", "v1"
		set, container := k.build(t, dir).daemonSet(t)
		for _, c := range append(set.Spec.Template.Spec.InitContainers, *container) {
			if c.Image != "registry.example/kube-nft:v1" {
				t.Errorf("%s: container %s runs image %s", overlay, c.Name, c.Image)
			}
		}
	}
}

// checkInit holds the containers that run before kube-nft to what they need.
func checkInit(t *testing.T, set *appsv1.DaemonSet) {
	t.Helper()
	for _, container := range set.Spec.Template.Spec.InitContainers {
		switch container.Name {
		case "sysctls":
			checkSysctls(t, &container)
			checkMounts(t, set, &container)
		default:
			t.Errorf("init container %s", container.Name)
		}
	}
	if set.Spec.Template.Spec.HostPID {
		t.Error("no container needs the node's process namespace")
	}
}

// checkSeesProcesses wants the node's proc file system where the arguments say.
func checkSeesProcesses(t *testing.T, set *appsv1.DaemonSet, container *corev1.Container) {
	t.Helper()
	paths := map[string]string{}
	for _, v := range set.Spec.Template.Spec.Volumes {
		if v.HostPath != nil {
			paths[v.Name] = v.HostPath.Path
		}
	}
	for _, mount := range container.VolumeMounts {
		if paths[mount.Name] == "/proc" && slices.Contains(container.Args, "--host-proc="+mount.MountPath) {
			return
		}
	}
	t.Errorf("arguments %v, mounts %v: the node's processes are not seen", container.Args, container.VolumeMounts)
}

// checkSysctls allows the one privileged container to set sysctls, and nothing else.
func checkSysctls(t *testing.T, container *corev1.Container) {
	t.Helper()
	security := container.SecurityContext
	if security.Privileged == nil || !*security.Privileged || security.ReadOnlyRootFilesystem == nil ||
		!*security.ReadOnlyRootFilesystem {
		t.Error("sysctls can be written by a privileged container alone, whose root file system is read-only")
	}
	if len(container.Args) == 0 || container.Args[0] != "--init-only" {
		t.Errorf("a privileged container runs %v", container.Args)
	}
}

// TestDeployKeepsTheConfigMap: with the overlay kubeadm, no flag wins over kube-proxy's settings.
func TestDeployKeepsTheConfigMap(t *testing.T) {
	set, container := kustomize(t, "../../deploy/overlays/kubeadm").daemonSet(t)
	for _, container := range append(set.Spec.Template.Spec.InitContainers, *container) {
		for _, arg := range container.Args {
			name, _, _ := strings.Cut(arg, "=")
			if !slices.Contains([]string{"--config", "--hostname-override", "--healthz-bind-address", "--takeover",
				"--host-proc", "--init-only"}, name) {
				t.Errorf("container %s: %s wins over the ConfigMap", container.Name, arg)
			}
		}
	}
}

func checkPod(t *testing.T, set *appsv1.DaemonSet) {
	t.Helper()
	pod := set.Spec.Template.Spec
	if !pod.HostNetwork || pod.HostIPC {
		t.Error("the pod needs the node's network, and not its IPC")
	}
	if pod.DNSPolicy != corev1.DNSDefault {
		t.Errorf("DNS policy %s: cluster DNS does not work before kube-nft does", pod.DNSPolicy)
	}
	if pod.PriorityClassName != "system-node-critical" {
		t.Errorf("priority class %q", pod.PriorityClassName)
	}
	if !slices.Equal(pod.Tolerations, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}) {
		t.Errorf("tolerations %v, want every taint tolerated", pod.Tolerations)
	}
	if want := set.Spec.Selector.MatchLabels; !maps.Equal(set.Spec.Template.Labels, want) {
		t.Errorf("pods are labelled %v, selected by %v", set.Spec.Template.Labels, want)
	}
}

// checkPrivileges holds a container to the capabilities that it needs.
func checkPrivileges(t *testing.T, container *corev1.Container, capabilities ...corev1.Capability) {
	t.Helper()
	security := container.SecurityContext
	if security == nil || security.Capabilities == nil {
		t.Fatal("no capabilities are taken away")
	}
	if got := security.Capabilities; !slices.Equal(got.Drop, []corev1.Capability{"ALL"}) ||
		!slices.Equal(got.Add, capabilities) {
		t.Errorf("capabilities %v", got)
	}
	isTrue := func(b *bool) bool { return b != nil && *b }
	if !isTrue(security.ReadOnlyRootFilesystem) || isTrue(security.Privileged) {
		t.Error("the root file system is writable, or the container is privileged")
	}
	if allow := security.AllowPrivilegeEscalation; allow == nil || *allow {
		t.Error("privilege escalation is allowed")
	}
	if container.Resources.Requests.Cpu().IsZero() || container.Resources.Requests.Memory().IsZero() {
		t.Errorf("resource requests %v", container.Resources.Requests)
	}
}

// checkProbes compares the probes with the port that the arguments ask for, whatever a configuration
// file says.
func checkProbes(t *testing.T, container *corev1.Container) {
	t.Helper()
	want := ""
	for _, arg := range container.Args {
		if address, given := strings.CutPrefix(arg, "--healthz-bind-address="); given {
			want = address[strings.LastIndex(address, ":")+1:]
		}
	}
	if exec := container.StartupProbe.Exec; exec == nil || !slices.Equal(exec.Command, []string{"/kube-nft", "ready"}) {
		t.Errorf("startup probe: %v, want kube-nft ready", container.StartupProbe)
	}
	for path, probe := range map[string]*corev1.Probe{"/livez": container.LivenessProbe,
		"/readyz": container.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port.String() != want {
			t.Errorf("probe of %s: %v, want port %q as in the arguments", path, probe, want)
		}
	}
}

// checkSurge wants a new pod to start beside the old one: the scheduler
// places two pods on a node only if they have no host port, and a declared port is one.
func checkSurge(t *testing.T, set *appsv1.DaemonSet) {
	t.Helper()
	update := set.Spec.UpdateStrategy.RollingUpdate
	if update == nil || update.MaxSurge == nil || update.MaxSurge.String() == "0" || update.MaxUnavailable == nil ||
		update.MaxUnavailable.String() != "0" {
		t.Errorf("update strategy %v, want a surge and no pod that ends first", update)
	}
	pod := set.Spec.Template.Spec
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		if len(container.Ports) > 0 {
			t.Errorf("container %s: ports %v", container.Name, container.Ports)
		}
	}
}

// checkMounts wants each mount to be of a volume that exists, and all but these to be read-only.
func checkMounts(t *testing.T, set *appsv1.DaemonSet, container *corev1.Container, writable ...string) {
	t.Helper()
	volumes := make(map[string]bool)
	for _, volume := range set.Spec.Template.Spec.Volumes {
		volumes[volume.Name] = true
	}
	var found []string
	for _, mount := range container.VolumeMounts {
		if !volumes[mount.Name] {
			t.Errorf("container %s: mount %v of volumes %v", container.Name, mount, volumes)
		}
		if !mount.ReadOnly {
			found = append(found, mount.MountPath)
		}
	}
	if !slices.Equal(found, writable) {
		t.Errorf("container %s can write to %v, want %v", container.Name, found, writable)
	}
}

func checkBinding(t *testing.T, objects deployment) {
	t.Helper()
	binding := objects["ClusterRoleBinding kube-nft"].(*rbacv1.ClusterRoleBinding)
	account := objects["ServiceAccount kube-nft"].(*corev1.ServiceAccount)
	set, _ := objects.daemonSet(t)
	want := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account.Name, Namespace: set.Namespace}}
	if !slices.Equal(binding.Subjects, want) || account.Namespace != set.Namespace {
		t.Errorf("subjects %v, want %v", binding.Subjects, want)
	}
	if binding.RoleRef.Name != "kube-nft" || set.Spec.Template.Spec.ServiceAccountName != account.Name {
		t.Errorf("role %s, service account %s", binding.RoleRef.Name, set.Spec.Template.Spec.ServiceAccountName)
	}
}

// TestDeployArguments has the program check the arguments of every overlay.
func TestDeployArguments(t *testing.T) {
	for _, overlay := range overlays {
		t.Run(overlay, func(t *testing.T) {
			set, container := kustomize(t, "../../deploy/"+overlay).daemonSet(t)
			accepted(t, append(arguments(container, kubeadmConfig), "--show-config"))
			for _, init := range set.Spec.Template.Spec.InitContainers {
				accepted(t, append(arguments(&init, kubeadmConfig), "--help"))
			}
		})
	}
}

// accepted runs the program, which must find nothing wrong with its arguments.
func accepted(t *testing.T, args []string) {
	t.Helper()
	cmd := exec.Command(lab.Program(t), args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", cmd, err, out)
	}
}

// A permission is one verb on one resource.
type permission struct{ group, resource, verb string }

// permissions lists what a role allows.
func permissions(role *rbacv1.ClusterRole) map[permission]bool {
	all := make(map[permission]bool)
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all[permission{group, resource, verb}] = true
				}
			}
		}
	}
	return all
}

// requests lists what a server was asked for.
func requests(server *apiserver.Server) map[permission]bool {
	all := make(map[permission]bool)
	for _, r := range server.Requests() {
		all[permission{r.Group, r.Resource, r.Verb}] = true
	}
	return all
}

// TestKernelDeployRole runs the program against a server that records requests, with and
// without streaming lists: the role allows all of them, and nothing else. Patching an event
// is what is not seen here: it takes an event that repeats for minutes.
func TestKernelDeployRole(t *testing.T) {
	want := permissions(kustomize(t, "../../deploy/base")["ClusterRole kube-nft"].(*rbacv1.ClusterRole))
	patch := permission{"events.k8s.io", "events", "patch"}
	if !want[patch] {
		t.Errorf("the role does not allow %v", patch)
	}
	delete(want, patch)
	streaming := maps.Clone(want)
	maps.DeleteFunc(streaming, func(p permission, _ bool) bool { return p.verb == "list" })
	for _, tt := range []struct {
		name    string
		prepare func(*apiserver.Server)
		want    map[permission]bool
	}{
		{"streaming lists", func(*apiserver.Server) {}, streaming},
		{"lists", (*apiserver.Server).DisableWatchList, want},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab.New(t)
			server := apiserver.New()
			tt.prepare(server)
			observeRequests(t, server, tt.want)
		})
	}
}

// observeRequests starts the server and the program, and waits until the requests that are
// wanted have been made; any other fails the test.
func observeRequests(t *testing.T, server *apiserver.Server, want map[permission]bool) {
	t.Helper()
	server.Apply(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}})
	kubeconfig := serve(t, server)
	process := lab.Start(t, lab.Program(t), "--kubeconfig", kubeconfig, "--hostname-override", "node-a")
	limit, tick := time.After(lab.Patience), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for !maps.Equal(requests(server), want) {
		select {
		case <-tick.C:
		case <-process.Exited():
			t.Fatalf("kube-nft has ended:\n%s", process.Stderr())
		case <-limit:
			t.Fatalf("requests after %s: %v\nwant %v", lab.Patience, requests(server), want)
		}
	}
	process.Stop(t)
}

// serve starts the server and returns a kubeconfig for it.
func serve(t *testing.T, server *apiserver.Server) string {
	t.Helper()
	if _, err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	kubeconfig, err := server.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// TestKernelDeployRoleOfCommands: what commands ask for is within the role, too, for they run in the pods of
// the DaemonSet.
func TestKernelDeployRoleOfCommands(t *testing.T) {
	allowed := permissions(kustomize(t, "../../deploy/base")["ClusterRole kube-nft"].(*rbacv1.ClusterRole))
	lab.New(t)
	server := apiserver.New()
	for name, address := range map[string]string{"node-a": "192.0.2.1", "node-b": "192.0.2.2"} {
		server.Apply(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
		})
	}
	settings := []string{"--kubeconfig", serve(t, server), "--hostname-override", "node-a"}
	for line, want := range map[string]string{
		"explain --from-source node-b node-a:30080/tcp": "192.0.2.2 -> 192.0.2.1:30080/tcp",
		"explain node-b node-a:30080/tcp":               "192.0.2.2 -> ",
		"diff":                                          "kube-nft",
		"migrate plan":                                  "Before",
	} {
		before := len(server.Requests())
		out, err := lab.Execute(slices.Concat([]string{lab.Program(t)}, strings.Fields(line), settings)...)
		if !strings.Contains(out.Stdout, want) {
			t.Errorf("%s: %v, no %q in\n%s%s", line, err, want, out.Stdout, out.Stderr)
		}
		if len(server.Requests()) == before {
			t.Errorf("%s has asked for nothing", line)
		}
	}
	for request := range requests(server) {
		if !allowed[request] {
			t.Errorf("the role does not allow %v", request)
		}
	}
}

// TestPageScrape: the example for Prometheus is YAML, keeps the container of the DaemonSet and
// asks the default port.
func TestPageScrape(t *testing.T) {
	_, rest, found := strings.Cut(string(readFile(t, "../../docs/operations.md")), "```yaml\nscrape_configs:")
	text, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("docs/operations.md has no scrape_configs")
	}
	var example struct {
		Jobs []struct {
			Rules []struct{ Regex, Replacement string } `json:"relabel_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal([]byte("scrape_configs:"+text), &example); err != nil {
		t.Fatal(err)
	}
	set, container := kustomize(t, "../../deploy/base").daemonSet(t)
	rules := example.Jobs[0].Rules
	if want := set.Spec.Template.Labels["app.kubernetes.io/name"] + ";" + container.Name; rules[0].Regex != want {
		t.Errorf("keeps %s, want %s", rules[0].Regex, want)
	}
	if _, port, _ := strings.Cut(rules[1].Replacement, ":"); !strings.Contains(lab.Run(t, "", lab.Program(t), "--help"),
		"127.0.0.1:"+port) {
		t.Errorf("asks port %s, which is not the default", port)
	}
}
