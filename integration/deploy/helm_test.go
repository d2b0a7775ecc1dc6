package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-nft/kube-nft/integration/lab"
)

const chart = "../../deploy/helm/kube-nft"

// helm runs the helm that make helm has put into bin, or the one in PATH. Without one the test is
// skipped, which .ci/run takes for a failure.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	program := lab.Path(t, "bin/helm")
	if _, missing := os.Stat(program); missing != nil {
		if program, missing = exec.LookPath("helm"); missing != nil {
			t.Skip("no helm; make helm gets it")
		}
	}
	command := exec.Command(program, args...)
	// What a user has configured is not this test's matter.
	command.Env = append(os.Environ(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_CACHE_HOME="+t.TempDir(),
		"HELM_DATA_HOME="+t.TempDir())
	var out, errors bytes.Buffer
	command.Stdout, command.Stderr = &out, &errors
	err = command.Run()
	return out.String(), errors.String(), err
}

// render returns the documents of helm template with values, such as mode=base.
func render(t *testing.T, values ...string) [][]byte {
	t.Helper()
	args := []string{"template", "kube-nft", chart, "--namespace", "kube-system"}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	out, errors, err := helm(t, args...)
	if err != nil {
		t.Fatalf("helm template %v: %v\n%s", values, err, errors)
	}
	path := filepath.Join(t.TempDir(), "rendered.yaml")
	if err := os.WriteFile(path, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	return documents(t, path)
}

// chartObjects renders the chart as kustomize renders an overlay.
func chartObjects(t *testing.T, values ...string) deployment {
	t.Helper()
	objects := make(deployment)
	for _, document := range render(t, values...) {
		name, object := decodeStrictly(t, chart, document)
		objects[name] = object
	}
	return objects
}

// TestHelmEqualsOverlays: each mode of the chart gives the objects of its overlay.
func TestHelmEqualsOverlays(t *testing.T) {
	for mode, overlay := range map[string]string{"base": "base", "kubeadm": "overlays/kubeadm",
		"canary": "overlays/canary", "shadow": "overlays/shadow"} {
		t.Run(mode, func(t *testing.T) {
			if diff := cmp.Diff(kustomize(t, "../../deploy/"+overlay), chartObjects(t, "mode="+mode),
				cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("mode %s (-kustomize +helm):\n%s", mode, diff)
			}
		})
	}
}

// TestHelmLint holds the chart against helm's own rules.
func TestHelmLint(t *testing.T) {
	for _, mode := range []string{"base", "kubeadm", "canary", "shadow"} {
		out, errors, err := helm(t, "lint", "--strict", "--set", "mode="+mode, chart)
		if err != nil || strings.Contains(out, "[INFO]") { // a recommendation that is not followed
			t.Errorf("mode %s: %v\n%s%s", mode, err, out, errors)
		}
	}
}

// TestHelmValues sets what has a default, and looks for it.
func TestHelmValues(t *testing.T) {
	objects := chartObjects(t, "mode=base", "image.repository=registry.example/kube-nft", "image.tag=v1",
		"image.pullPolicy=Always",
		"apiServer.host=192.0.2.10", "apiServer.port=443", "metricsBindAddress=0.0.0.0:9999",
		"extraArgs={--table-ownership=auto}",
		"nodeSelector.pool=a", "imagePullSecrets[0].name=pull", "podLabels.team=net",
		"extraEnv[0].name=GOMAXPROCS", "extraVolumes[0].name=settings", "extraVolumes[0].configMap.name=kube-nft",
		"extraVolumeMounts[0].name=settings", "extraVolumeMounts[0].mountPath=/etc/kube-nft")
	set, container := objects.daemonSet(t)
	pod := set.Spec.Template.Spec
	for _, c := range append(pod.InitContainers, *container) {
		if c.Image != "registry.example/kube-nft:v1" || c.ImagePullPolicy != "Always" {
			t.Errorf("container %s: image %s, %s", c.Name, c.Image, c.ImagePullPolicy)
		}
	}
	env := make(map[string]string)
	for _, e := range container.Env {
		env[e.Name] = e.Value
	}
	if _, ok := env["GOMAXPROCS"]; !ok {
		t.Errorf("environment %v", env)
	}
	volumes, mounts := pod.Volumes, container.VolumeMounts
	if v, m := volumes[len(volumes)-1], mounts[len(mounts)-1]; v.ConfigMap == nil || v.ConfigMap.Name != "kube-nft" ||
		m.Name != v.Name || m.MountPath != "/etc/kube-nft" {
		t.Errorf("volume %+v, mount %+v", v, m)
	}
	if env["KUBERNETES_SERVICE_HOST"] != "192.0.2.10" || env["KUBERNETES_SERVICE_PORT"] != "443" {
		t.Errorf("the API server is at %v", env)
	}
	args := strings.Join(container.Args, " ")
	if !strings.HasSuffix(args, "--metrics-bind-address=0.0.0.0:9999 --table-ownership=auto") {
		t.Errorf("arguments %s", args)
	}
	if pod.NodeSelector["pool"] != "a" || pod.NodeSelector["kubernetes.io/os"] != "linux" ||
		pod.ImagePullSecrets[0].Name != "pull" ||
		set.Spec.Template.Labels["team"] != "net" {
		t.Errorf("pod %+v, labels %v", pod, set.Spec.Template.Labels)
	}
}

// TestHelmTags: a tag of --set that looks like a number is taken as it is written, and one in a file, where YAML has
// changed it, is refused.
func TestHelmTags(t *testing.T) {
	for _, tag := range []string{"20261123", "007", "1.10", "v1"} {
		_, container := chartObjects(t, "image.tag="+tag).daemonSet(t)
		if container.Image != "kube-nft:"+tag {
			t.Errorf("tag %s: image %s", tag, container.Image)
		}
	}
	for text, want := range map[string]string{"20261123": "is a number", "1.10": "is a number", `"1.10"`: ""} {
		path := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(path, []byte("image: {tag: "+text+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, errors, err := helm(t, "template", "kube-nft", chart, "--values", path)
		if (err != nil) != (want != "") || !strings.Contains(errors, want) {
			t.Errorf("tag: %s in a file: %v, %s", text, err, errors)
		}
	}
}

// TestHelmViewers: the rights to use the plug-in are those of deploy/plugin-rbac.yaml, and go to the subjects.
func TestHelmViewers(t *testing.T) {
	roles := make(deployment)
	for _, document := range documents(t, "../../deploy/plugin-rbac.yaml") {
		name, object := decodeStrictly(t, "plugin-rbac.yaml", document)
		roles[name] = object
	}
	if len(roles) != 2 {
		t.Fatalf("plugin-rbac.yaml has %d objects", len(roles))
	}
	objects := chartObjects(t, "mode=base", "viewers.enabled=true", "viewers.subjects[0].kind=Group",
		"viewers.subjects[0].name=platform")
	for name, role := range roles {
		if diff := cmp.Diff(role, objects[name], cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-plugin-rbac.yaml +chart):\n%s", name, diff)
		}
	}
	cluster, ok := objects["ClusterRoleBinding kube-nft-viewer"].(*rbacv1.ClusterRoleBinding)
	local, alsoOK := objects["RoleBinding kube-nft-viewer"].(*rbacv1.RoleBinding)
	if !ok || !alsoOK || cluster.Subjects[0].Name != "platform" || local.Subjects[0].Name != "platform" ||
		cluster.RoleRef.Name != "kube-nft-viewer" || local.RoleRef.Kind != "Role" || local.Namespace != "kube-system" {
		t.Errorf("bindings %+v, %+v", cluster, local)
	}
	if _, there := chartObjects(t, "mode=base")["Role kube-nft-viewer"]; there {
		t.Error("the chart has the Role without the value that asks for it")
	}
}

// TestHelmDashboard: the ConfigMap has the dashboard as it is.
func TestHelmDashboard(t *testing.T) {
	objects := chartObjects(t, "mode=base", "dashboard.enabled=true", "dashboard.namespace=monitoring")
	config, ok := objects["ConfigMap kube-nft-dashboard"].(*corev1.ConfigMap)
	if !ok || config.Namespace != "monitoring" || config.Labels["grafana_dashboard"] != "1" {
		t.Fatalf("got %+v", objects["ConfigMap kube-nft-dashboard"])
	}
	want := strings.TrimSpace(string(readFile(t, "../../deploy/dashboard.json")))
	if config.Data["kube-nft.json"] != want {
		t.Errorf("%d bytes, want those of deploy/dashboard.json, %d", len(config.Data["kube-nft.json"]), len(want))
	}
}

// TestHelmReadme: the chart's README names all values that there are.
func TestHelmReadme(t *testing.T) {
	readme := string(readFile(t, chart+"/README.md"))
	values := make(map[string]any)
	if err := yaml.Unmarshal(readFile(t, chart+"/values.yaml"), &values); err != nil {
		t.Fatal(err)
	}
	for name, value := range values {
		names := []string{name}
		below, ok := value.(map[string]any)
		if ok && len(below) > 0 && name != "resources" && name != "updateStrategy" {
			names = nil
			for key := range below {
				names = append(names, name+"."+key)
			}
		}
		for _, name := range names {
			if !strings.Contains(readme, "`"+name+"`") {
				t.Errorf("README.md lacks %s", name)
			}
		}
	}
}

// TestHelmName: all objects have the name of nameOverride, and the pods keep the label by which commands find them.
func TestHelmName(t *testing.T) {
	objects := chartObjects(t, "mode=base", "image.repository=registry.example/kube-nft", "image.tag=v1",
		"nameOverride=net-proxy")
	if full := chartObjects(t, "mode=base", "nameOverride=a", "fullnameOverride=b"); full["DaemonSet b"] == nil {
		t.Error("fullnameOverride does not take precedence")
	}
	for name := range objects {
		if !strings.HasSuffix(name, " net-proxy") {
			t.Errorf("%s has another name", name)
		}
	}
	set, ok := objects["DaemonSet net-proxy"].(*appsv1.DaemonSet)
	if !ok || set.Spec.Template.Spec.ServiceAccountName != "net-proxy" ||
		set.Spec.Template.Labels["app.kubernetes.io/name"] != "kube-nft" {
		t.Errorf("got %+v", objects["DaemonSet net-proxy"])
	}
}

// TestHelmMonitoring: the chart's PodMonitor is the component's, and its PrometheusRule has the alerts.
func TestHelmMonitoring(t *testing.T) {
	found := make(map[string]map[string]any)
	for _, document := range render(t, "podMonitor.enabled=true", "prometheusRule.enabled=true",
		"metricsBindAddress=0.0.0.0:10249") {
		object := make(map[string]any)
		if err := yaml.UnmarshalStrict(document, &object); err != nil {
			t.Fatal(err)
		}
		found[object["kind"].(string)] = object
	}
	var monitor, rule map[string]any
	for path, object := range map[string]*map[string]any{"components/podmonitor/podmonitor.yaml": &monitor,
		"alerts.yaml": &rule} {
		if err := yaml.UnmarshalStrict(readFile(t, "../../deploy/"+path), object); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(monitor, found["PodMonitor"]); diff != "" {
		t.Errorf("PodMonitor (-component +chart):\n%s", diff)
	}
	if diff := cmp.Diff(any(rule), found["PrometheusRule"]["spec"]); diff != "" {
		t.Errorf("PrometheusRule (-alerts.yaml +chart):\n%s", diff)
	}
}

// TestHelmRefuses: a wrong value is refused by its name.
func TestHelmRefuses(t *testing.T) {
	for value, want := range map[string]string{
		"mode=ipvs":                       "/mode",
		"kubeProxyConfigMap=":             "kubeProxyConfigMap",
		"imagetag=v1":                     "imagetag",
		"image.tagg=v1":                   "tagg",
		"apiServer.port=70000":            "/apiServer/port",
		"metricsBindAddress=everywhere":   "/metricsBindAddress",
		"extraArgs={table-ownership}":     "/extraArgs/0",
		"updateStrategy.type=Sometimes":   "/updateStrategy/type",
		"podMonitor.enabled=true":         "metricsBindAddress",
		"podMonitor.enabled=yes-please":   "/podMonitor/enabled",
		"tolerations=Exists":              "/tolerations",
		"image.pullPolicy=WheneverItFits": "/image/pullPolicy",
		"image.tag=true":                  "/image/tag",
		"viewers.subjects[0].kind=Team":   "/viewers/subjects/0",
		"extraEnv[0].value=x":             "/extraEnv/0",
	} {
		_, errors, err := helm(t, "template", "kube-nft", chart, "--set", value)
		if err == nil || !strings.Contains(strings.ReplaceAll(errors, ".", "/"), want) && !strings.Contains(errors, want) {
			t.Errorf("--set %s: %v\n%s", value, err, errors)
		}
	}
}
