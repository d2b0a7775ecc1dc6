package informer_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kube-nft/kube-nft/tracker/informer"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443"}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

func TestConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(path, []byte(kubeconfig), 0o600))
	tests := []struct {
		name       string
		connection informer.Connection
		want       rest.Config
	}{
		{"kubeconfig", informer.Connection{Kubeconfig: path, QPS: 5, Burst: 10}, rest.Config{
			Host: "https://192.0.2.1:6443", BearerToken: "secret", QPS: 5, Burst: 10,
			ContentConfig: rest.ContentConfig{
				ContentType:        "application/vnd.kubernetes.protobuf",
				AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
			},
		}},
		{"kubeconfig and master", informer.Connection{Kubeconfig: path, Master: "https://192.0.2.2",
			ContentType: "application/json"}, rest.Config{
			Host: "https://192.0.2.2", BearerToken: "secret",
			ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"},
		}},
		{"master", informer.Connection{Master: "http://192.0.2.3:8080"}, rest.Config{
			Host: "http://192.0.2.3:8080",
			ContentConfig: rest.ContentConfig{
				ContentType:        "application/vnd.kubernetes.protobuf",
				AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
			},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.connection.Config()
			must(t, err)
			if got.Host != tt.want.Host || got.BearerToken != tt.want.BearerToken || got.QPS != tt.want.QPS ||
				got.Burst != tt.want.Burst || got.ContentConfig != tt.want.ContentConfig {
				t.Errorf("got %v, want %v", got, &tt.want)
			}
		})
	}
}

// TestConnectionOfAProcess: paths lead to the files of the process in the pod, those of its kubeconfig as well.
func TestConnectionOfAProcess(t *testing.T) {
	process := &informer.Process{Root: t.TempDir(), Server: "https://192.0.2.9:6443"}
	const account = "/var/run/secrets/kubernetes.io/serviceaccount"
	must(t, os.MkdirAll(filepath.Join(process.Root, account), 0o700))
	for _, name := range []string{"token", "ca.crt"} {
		must(t, os.WriteFile(filepath.Join(process.Root, account, name), []byte("secret"), 0o600))
	}
	must(t, os.WriteFile(filepath.Join(process.Root, "kubeconfig"), []byte(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443", certificate-authority: `+account+`/ca.crt}}]
users: [{name: u, user: {tokenFile: `+account+`/token}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`), 0o600))
	for kubeconfig, server := range map[string]string{"": process.Server, "/kubeconfig": "https://192.0.2.1:6443"} {
		got, err := (&informer.Connection{Kubeconfig: kubeconfig, Process: process}).Config()
		must(t, err)
		if got.Host != server || got.BearerTokenFile != filepath.Join(process.Root, account, "token") ||
			got.CAFile != filepath.Join(process.Root, account, "ca.crt") {
			t.Errorf("kubeconfig %q: got %v", kubeconfig, got)
		}
	}
}

func TestConnectionErrors(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	const remedy = "pass --kubeconfig FILE, or --manifests PATH to run without an API server"
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	tests := []struct {
		name       string
		connection informer.Connection
		want       string
	}{
		{"not in a cluster", informer.Connection{}, "not running in a Kubernetes cluster: " + remedy},
		{"no file", informer.Connection{Kubeconfig: dir + "/none"},
			"kubeconfig " + dir + "/none: no such file or directory; " + remedy},
		{"directory", informer.Connection{Kubeconfig: dir}, "kubeconfig " + dir + ": is a directory; " + remedy},
		{"empty", informer.Connection{Kubeconfig: file("empty", "")},
			"kubeconfig " + dir + "/empty: it names no cluster in its current context; " + remedy},
		{
			"not YAML", informer.Connection{Kubeconfig: file("bad", "a: [")},
			"kubeconfig " + dir + "/bad: yaml: line 1: did not find expected node content; " + remedy,
		},
		{
			"unknown context",
			informer.Connection{Kubeconfig: file("context", "apiVersion: v1\nkind: Config\ncurrent-context: gone\n")},
			"kubeconfig " + dir +
				"/context: invalid configuration: [context was not found for specified context: gone, cluster has no server " +
				"defined]; " + remedy,
		},
		{
			"certificate missing",
			informer.Connection{
				Kubeconfig: file("certificate", strings.Replace(kubeconfig, "token: secret",
					"client-certificate: none, client-key: none", 1)),
			},
			"kubeconfig " + dir + "/certificate: invalid configuration: [unable to read client-cert " + dir +
				"/none for u due to open " + dir + "/none: no such file or directory, unable to read client-key " + dir +
				"/none for u due to open " + dir + "/none: no such file or directory]; " + remedy,
		},
		{
			"bad master", informer.Connection{Master: "https://[::1"},
			"--master https://[::1: host must be a URL or a host:port pair: \"https://[::1\"; expected a URL such as " +
				"https://10.0.0.1:6443",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config, err := tt.connection.Client()
			if err == nil || err.Error() != tt.want {
				t.Errorf("got %v and error\n%v, want\n%s", config, err, tt.want)
			}
		})
	}
}
