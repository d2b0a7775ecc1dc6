package manifest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/tracker/trackertest"
)

// parse reads content as a file of that name.
func parse(name, content string) (*file, error) {
	f := &file{path: name}
	f.failure = f.parse([]byte(content))
	return f, f.failure
}

func ids(objects []object) []string {
	var names []string
	for _, o := range objects {
		names = append(names, fmt.Sprintf("%d %s", o.line, o.id))
	}
	return names
}

func TestParse(t *testing.T) {
	tests := []struct {
		name, file, content string
		want                []string // line and id
		notices             []string
	}{
		{name: "empty", file: "a.yaml"},
		{name: "comments and directives only", file: "a.yaml", content: "%YAML 1.1\n---\n# nothing\n---\n\n...\n"},
		{
			name: "documents", file: "a.yaml",
			content: "# leading comment\n\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n" +
				"---\napiVersion: v1\nkind: Node\nmetadata: {name: one, namespace: ignored}\n" +
				"--- # comment\n{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: c}}\n...\n" +
				"---\n{\"apiVersion\": \"discovery.k8s.io/v1\", \"kind\": \"EndpointSlice\", \"metadata\": {\"name\": \"s\"}}\n",
			want: []string{"3 Service shop/web", "7 Node one", "11 ServiceCIDR c", "14 EndpointSlice default/s"},
		},
		{
			name: "byte order mark and CRLF", file: "a.yml",
			content: "\xef\xbb\xbfapiVersion: v1\r\nkind: Node\r\nmetadata:\r\n  name: one\r\n---\r\napiVersion: v1\r\nkind: " +
				"Node\r\nmetadata:\r\n  name: two\r\n",
			want: []string{"1 Node one", "6 Node two"},
		},
		{
			name: "marker inside a block scalar", file: "a.yaml",
			content: "apiVersion: v1\nkind: Node\nmetadata:\n  name: one\n  annotations:\n    text: |\n      a\n      ---\n   " +
				"   b\n",
			want: []string{"1 Node one"},
		},
		{
			name: "lists", file: "a.yaml",
			content: "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: a}}\n- null\n- " +
				"apiVersion: v1\n  kind: NodeList\n  items: [{metadata: {name: three}}]\n" +
				"---\napiVersion: v1\nkind: ServiceList\nitems: [{metadata: {name: b}}]\n",
			want: []string{"1 Service default/a", "1 Node three", "10 Service default/b"},
		},
		{
			name: "JSON sequence", file: "a.json",
			content: "{\"apiVersion\":\"v1\",\"kind\":\"Node\",\n\"metadata\":{\"name\":\"a\"}}\n\n" +
				"{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"b\"}}",
			want: []string{"1 Node a", "4 Node b"},
		},
		{
			name: "other kinds", file: "a.yaml",
			content: "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}}\n---\n{apiVersion: v1, kind: List, items: " +
				"[{apiVersion: v1, kind: Pod}, {apiVersion: apps/v1, kind: Deployment}]}\n",
			notices: []string{"a.yaml: skipped objects of other kinds: 2 apps/v1 Deployment, 1 v1 Pod"},
		},
		{
			name: "unknown and repeated fields", file: "a.yaml",
			content: "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIp: 10.96.0.1\n  ports: " +
				"[{port: 80, colour: red}]\n",
			want: []string{"2 Service default/web"},
			notices: []string{
				`a.yaml:2: Service default/web: unknown field "spec.clusterIp"; it is ignored`,
				`a.yaml:2: Service default/web: unknown field "spec.ports[0].colour"; it is ignored`,
			},
		},
		{
			name: "unknown field in a list", file: "a.json",
			content: `{"apiVersion":"v1","kind":"NodeList","items":[{"metadata":{"name":"n"},"x":1}]}`,
			want:    []string{"1 Node n"},
			notices: []string{`a.json:1: Node n: items[0].unknown field "x"; it is ignored`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := parse(tt.file, tt.content)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, ids(f.objects)); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.notices, f.notices); diff != "" {
				t.Errorf("notices (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	node := "apiVersion: v1\nkind: Node\nmetadata: {name: one}\n---\n"
	tests := []struct{ name, file, content, want string }{
		{"syntax", "a.yaml", node + "apiVersion: v1\nkind: [\nmetadata: {}\n", "a.yaml:7: did not find expected ',' or ']'"},
		{"tab", "a.yaml", node + "# comment\napiVersion: v1\nmetadata:\n\tname: x\n",
			"a.yaml:8: found character that cannot start any token"},
		{"repeated key", "a.yaml", node + "apiVersion: v1\nkind: Node\nkind: Node\n",
			`a.yaml:7: key "kind" already set in map`},
		{"no kind", "a.yaml", node + "\nmetadata: {name: x}\n",
			"a.yaml:6: apiVersion and kind are missing: expected for instance v1 and Service"},
		{"no name", "a.yaml", node + "apiVersion: v1\nkind: Service\n", "a.yaml:5: metadata.name is missing"},
		{"scalar", "a.yaml", "just text\n", "a.yaml:1: found a string, expected an object"},
		{"wrong type", "a.yaml",
			node + "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  ports: [{port: http}]\n",
			"a.yaml:5: spec.ports.port is a string, expected a whole number from -2147483648 to 2147483647"},
		{"wrong type in a list", "a.yaml",
			"apiVersion: v1\nkind: ServiceList\nitems: [{metadata: {name: web}, spec: {externalIPs: 1}}]\n",
			"a.yaml:1: items[0].spec.externalIPs is a number, expected a list"},
		{"JSON syntax", "a.json", "{\"apiVersion\":\"v1\",\n\"kind\":}",
			"a.json:2: invalid character '}' looking for beginning of value"},
		{"JSON cut short", "a.json", "{\"apiVersion\":\"v1\",\n", "a.json:2: unexpected EOF"},
		{"items of another type", "a.yaml", "apiVersion: v1\nkind: List\nitems: 3\n",
			"a.yaml:1: items is a number, expected a list"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := parse(tt.file, tt.content)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got error %v, want %s", err, tt.want)
			}
			if len(f.objects) != 0 {
				t.Errorf("objects of a bad file: %v", ids(f.objects))
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	cluster := corev1.ServiceInternalTrafficPolicyCluster
	tests := []struct {
		name, spec string
		want       corev1.ServiceSpec
	}{
		{"nothing", "{}", corev1.ServiceSpec{Type: "ClusterIP", SessionAffinity: "None", InternalTrafficPolicy: &cluster}},
		{"cluster IP", "{clusterIP: 10.0.0.1, ports: [{port: 80}]}", corev1.ServiceSpec{
			Type: "ClusterIP", ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"}, IPFamilies: []corev1.IPFamily{"IPv4"},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP"}}, SessionAffinity: "None", InternalTrafficPolicy: &cluster,
		}},
		{"dual-stack", "{type: NodePort, clusterIPs: [\"fd00::1\", 10.0.0.1]}", corev1.ServiceSpec{
			Type: "NodePort", ClusterIP: "fd00::1", ClusterIPs: []string{"fd00::1", "10.0.0.1"},
			IPFamilies:      []corev1.IPFamily{"IPv6", "IPv4"},
			SessionAffinity: "None", InternalTrafficPolicy: &cluster, ExternalTrafficPolicy: "Cluster",
		}},
		{"affinity", "{sessionAffinity: ClientIP, clusterIP: None}", corev1.ServiceSpec{
			Type: "ClusterIP", ClusterIP: "None", ClusterIPs: []string{"None"}, SessionAffinity: "ClientIP",
			InternalTrafficPolicy: &cluster,
			SessionAffinityConfig: &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(10800))},
			},
		}},
		{"external IPs", "{externalIPs: [192.0.2.1]}", corev1.ServiceSpec{
			Type: "ClusterIP", ExternalIPs: []string{"192.0.2.1"}, SessionAffinity: "None", InternalTrafficPolicy: &cluster,
			ExternalTrafficPolicy: "Cluster",
		}},
		{"external name", "{type: ExternalName, externalName: example.org}", corev1.ServiceSpec{
			Type: "ExternalName", ExternalName: "example.org", SessionAffinity: "None",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := parse("a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: "+tt.spec+"\n")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, f.objects[0].value.(*corev1.Service).Spec); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDefaultsOfSliceAndIngress(t *testing.T) {
	f, err := parse("a.yaml", `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s}
ports: [{port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {hostname: h}]}}
`)
	if err != nil {
		t.Fatal(err)
	}
	port := f.objects[0].value.(*discoveryv1.EndpointSlice).Ports[0]
	if *port.Name != "" || *port.Protocol != corev1.ProtocolTCP {
		t.Errorf("slice port: %+v", port)
	}
	ingress := f.objects[1].value.(*corev1.Service).Status.LoadBalancer.Ingress
	if *ingress[0].IPMode != corev1.LoadBalancerIPModeVIP || ingress[1].IPMode != nil {
		t.Errorf("ingress: %+v", ingress)
	}
}

func TestUneditedDocumentsAreKept(t *testing.T) {
	const first, second = "apiVersion: v1\nkind: Node\nmetadata: {name: one}\n---\n",
		"apiVersion: v1\nkind: Node\nmetadata: {name: two}\n"
	f, err := parse("a.yaml", first+second)
	if err != nil {
		t.Fatal(err)
	}
	before := f.objects[1].value
	if err := f.parse([]byte("# moved\n" + first + "\n---\n" + second)); err != nil {
		t.Fatal(err)
	}
	if f.objects[1].value != before {
		t.Error("an unedited document was decoded again")
	}
	if diff := cmp.Diff([]string{"2 Node one", "8 Node two"}, ids(f.objects)); diff != "" {
		t.Errorf("positions (-want +got):\n%s", diff)
	}
}

func TestNoticesStayWhenOtherDocumentsAreEdited(t *testing.T) {
	const pods = "{apiVersion: v1, kind: Pod}\n---\n{apiVersion: v1, kind: Pod}\n---\n{apiVersion: v1, kind: Node, x: " +
		"1, metadata: {name: one}}\n"
	f, err := parse("a.yaml", pods)
	if err != nil {
		t.Fatal(err)
	}
	before := f.notices
	if err := f.parse([]byte(pods + "---\n{apiVersion: v1, kind: Node, metadata: {name: two}}\n")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, f.notices); diff != "" || len(before) != 2 {
		t.Errorf("notices (-before +after):\n%s", diff)
	}
}

func TestSizeLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big.yaml")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, maxFileSize+1); err != nil {
		t.Fatal(err)
	}
	want := path + ": larger than 64 MiB: split it into several files"
	if err := Load(path, Options{}, trackertest.NewSink()); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// manifestOf returns n Services with ten endpoints each as YAML documents.
func manifestOf(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b,
			"---\napiVersion: v1\nkind: Service\nmetadata:\n  name: s%d\nspec:\n  clusterIP: 10.96.%d.%d\n  ports:\n  - name: "+
				"http\n    port: 80\n", i, i/250, i%250)
		fmt.Fprintf(&b,
			"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: s%d-1\n  labels: "+
				"{kubernetes.io/service-name: s%d}\naddressType: IPv4\nports:\n- name: http\n  port: 8080\nendpoints:\n", i, i)
		for e := range 10 {
			fmt.Fprintf(&b, "- addresses: [10.%d.%d.%d]\n  conditions: {ready: true}\n", 128+e, i/250, i%250)
		}
	}
	return b.Bytes()
}

// BenchmarkParse reads 1,000 Services with ten endpoints each, then the same with one
// document edited.
func BenchmarkParse(b *testing.B) {
	content := manifestOf(1000)
	edited := bytes.Replace(content, []byte("10.96.2.0"), []byte("10.96.9.9"), 1)
	b.Run("new", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			if err := (&file{path: "a.yaml"}).parse(content); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("edited", func(b *testing.B) {
		f := &file{path: "a.yaml"}
		for i := 0; b.Loop(); i++ {
			if err := f.parse([][]byte{content, edited}[i%2]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// FuzzParse holds that no content makes the parser panic, that errors name a line of the
// file, and that what it reads can be handed to a sink.
func FuzzParse(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Service\nmetadata: {name: web}\n---\na: ["), false)
	f.Add([]byte(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}]}`),
		true)
	f.Add([]byte("a: &a [*a]\n---\n- x\n...\n%TAG"), false)
	f.Add(manifestOf(1), false)
	f.Fuzz(func(t *testing.T, content []byte, asJSON bool) {
		name := map[bool]string{false: "a.yaml", true: "a.json"}[asJSON]
		parsed := &file{path: name}
		if err := parsed.parse(content); err != nil {
			checkPosition(t, err.Error(), name, bytes.Count(content, []byte("\n"))+2)
			return
		}
		sink := trackertest.NewSink()
		for _, o := range parsed.objects {
			if o.name == "" || o.line < 1 || o.value.GetName() != o.name {
				t.Fatalf("object %+v", o)
			}
			_ = o.give(sink)
		}
	})
}

func checkPosition(t *testing.T, text, name string, most int) {
	var line int
	rest, ok := strings.CutPrefix(text, name+":")
	if _, err := fmt.Sscanf(rest, "%d:", &line); !ok || err != nil || line < 1 || line > most {
		t.Fatalf("error without a line of the file: %q", text)
	}
	if strings.Contains(text, "\n") {
		t.Fatalf("error of several lines: %q", text)
	}
}
