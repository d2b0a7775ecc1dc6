package deploy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// A kustomization is what our kustomization.yaml files use of kustomize.config.k8s.io.
type kustomization struct {
	metav1.TypeMeta `json:",inline"`
	Namespace       string   `json:"namespace,omitempty"`
	Resources       []string `json:"resources"`
	Patches         []struct {
		Path string `json:"path"`
	} `json:"patches,omitempty"`
	Images []image `json:"images,omitempty"`
}

// An image says what stands for the name of one in containers.
type image struct {
	Name    string `json:"name"`
	NewName string `json:"newName"`
	NewTag  string `json:"newTag"`
}

// deployTypes are the kinds of objects that deploy/ may hold.
var deployTypes = map[schema.GroupVersionKind]any{
	appsv1.SchemeGroupVersion.WithKind("DaemonSet"):          appsv1.DaemonSet{},
	corev1.SchemeGroupVersion.WithKind("ServiceAccount"):     corev1.ServiceAccount{},
	rbacv1.SchemeGroupVersion.WithKind("ClusterRole"):        rbacv1.ClusterRole{},
	rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"): rbacv1.ClusterRoleBinding{},
	rbacv1.SchemeGroupVersion.WithKind("Role"):               rbacv1.Role{},
	rbacv1.SchemeGroupVersion.WithKind("RoleBinding"):        rbacv1.RoleBinding{},
	corev1.SchemeGroupVersion.WithKind("ConfigMap"):          corev1.ConfigMap{},
}

// A deployment is what kubectl apply -k DIR would create, by kind and name.
type deployment map[string]any

// kustomize builds a directory below deploy/ as kubectl kustomize does, as far as ours go.
func kustomize(t *testing.T, dir string) deployment {
	t.Helper()
	return readKustomization(t, dir).build(t, dir)
}

func readKustomization(t *testing.T, dir string) *kustomization {
	t.Helper()
	k := new(kustomization)
	if err := yaml.UnmarshalStrict(readFile(t, filepath.Join(dir, "kustomization.yaml")), k); err != nil {
		t.Fatalf("%s/kustomization.yaml: %v", dir, err)
	}
	return k
}

// build does what the kustomization of a directory says, in kustomize's order: images come
// last, after the images of the directories below.
func (k *kustomization) build(t *testing.T, dir string) deployment {
	t.Helper()
	objects := make(deployment)
	for _, resource := range k.Resources {
		path := filepath.Join(dir, resource)
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			for name, object := range kustomize(t, path) {
				objects[name] = object
			}
			continue
		}
		for _, document := range documents(t, path) {
			name, object := decodeStrictly(t, path, document)
			objects[name] = object
		}
	}
	for _, patch := range k.Patches {
		objects.patch(t, filepath.Join(dir, patch.Path))
	}
	set, _ := objects.daemonSet(t)
	for _, image := range k.Images {
		for _, containers := range [][]corev1.Container{set.Spec.Template.Spec.InitContainers,
			set.Spec.Template.Spec.Containers} {
			for i := range containers {
				containers[i].Image = image.replace(containers[i].Image)
			}
		}
	}
	return objects
}

// replace returns what stands for an image.
func (i *image) replace(name string) string {
	if bare, _, _ := strings.Cut(name, ":"); bare != i.Name {
		return name
	}
	return i.NewName + ":" + i.NewTag
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// documents splits a file of YAML documents.
func documents(t *testing.T, path string) (list [][]byte) {
	t.Helper()
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(readFile(t, path))))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if len(bytes.TrimSpace(document)) > 0 {
			list = append(list, document)
		}
	}
}

// decodeStrictly turns a document into an API object; unknown and repeated fields fail the
// test. It returns kind and name as well.
func decodeStrictly(t *testing.T, path string, document []byte) (string, any) {
	t.Helper()
	var meta metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(document, &meta); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	example, known := deployTypes[meta.GroupVersionKind()]
	if !known {
		t.Fatalf("%s: %s is not a kind that deploy/ may hold", path, meta.GroupVersionKind())
	}
	object := reflect.New(reflect.TypeOf(example)).Interface()
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		t.Fatalf("%s: %s %s: %v", path, meta.Kind, meta.Name, err)
	}
	return meta.Kind + " " + meta.Name, object
}

// patch applies a strategic merge patch, a file with one object, and decodes the outcome.
func (d deployment) patch(t *testing.T, path string) {
	t.Helper()
	document := readFile(t, path)
	var meta metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(document, &meta); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	name := meta.Kind + " " + meta.Name
	original, err := json.Marshal(d[name])
	if err != nil || d[name] == nil {
		t.Fatalf("%s patches %s, which does not exist (%v)", path, name, err)
	}
	change, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	patched, err := strategicpatch.StrategicMergePatch(original, change, deployTypes[meta.GroupVersionKind()])
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	_, d[name] = decodeStrictly(t, path, patched)
}

// daemonSet returns the DaemonSet and its only container.
func (d deployment) daemonSet(t *testing.T) (*appsv1.DaemonSet, *corev1.Container) {
	t.Helper()
	set, ok := d["DaemonSet kube-nft"].(*appsv1.DaemonSet)
	if !ok || len(set.Spec.Template.Spec.Containers) != 1 {
		t.Fatal("want a DaemonSet kube-nft with one container")
	}
	return set, &set.Spec.Template.Spec.Containers[0]
}

// arguments returns the container's arguments as the program gets them on node-a, with the
// files that it mounts below another directory.
func arguments(container *corev1.Container, mounted map[string]string) []string {
	args := make([]string, len(container.Args))
	for i, arg := range container.Args {
		arg = strings.ReplaceAll(arg, "$(NODE_NAME)", "node-a")
		for file, stand := range mounted {
			arg = strings.ReplaceAll(arg, file, stand)
		}
		args[i] = arg
	}
	return args
}
