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
		"canary": "overlays/canary"} {
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
	for _, mode := range []string{"base", "kubeadm", "canary"} {
		if out, errors, err := helm(t, "lint", "--strict", "--set", "mode="+mode, chart); err != nil {
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
		"nodeSelector.pool=a", "imagePullSecrets[0].name=pull", "podLabels.team=net")
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

// TestHelmName: all objects have the name of nameOverride, and the pods keep the label by which commands find them.
func TestHelmName(t *testing.T) {
	objects := chartObjects(t, "mode=base", "image.repository=registry.example/kube-nft", "image.tag=v1",
		"nameOverride=net-proxy")
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
	} {
		_, errors, err := helm(t, "template", "kube-nft", chart, "--set", value)
		if err == nil || !strings.Contains(strings.ReplaceAll(errors, ".", "/"), want) && !strings.Contains(errors, want) {
			t.Errorf("--set %s: %v\n%s", value, err, errors)
		}
	}
}
