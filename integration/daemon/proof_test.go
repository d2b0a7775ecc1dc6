package daemon

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// asOwnUser are the words before a command of a container that has made a user namespace: it has all
// capabilities there, and none over the node's network.
var asOwnUser = append(slices.Clone(asContainer), "unshare", "--user", "--keep-caps")

// request starts a process that writes requests to the daemon and keeps its connection.
func request(t *testing.T, before []string, requests string) *lab.Process {
	t.Helper()
	path := filepath.Join(t.TempDir(), "requests")
	if err := os.WriteFile(path, []byte(requests), 0o644); err != nil {
		t.Fatal(err)
	}
	return lab.Start(t, slices.Concat(before, []string{"socat", "-t", "1000", "ABSTRACT-CONNECT:kube-nft", "OPEN:" + path + ",ignoreeof"})...)
}

// TestRequestsWithoutCapability: root in a container, in the node's network and without CAP_NET_ADMIN, neither
// makes the daemon release its tables nor gets its listening sockets, and keeps nobody from either.
func TestRequestsWithoutCapability(t *testing.T) {
	for name, before := range map[string][]string{"container": asContainer, "user namespace": asOwnUser} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab.New(t)
			k, objects := lab.Open(t, kernel.Open), lab.NewDirectory(t)
			objects.Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods, 3)))
			p := objects.Start(t, "--table-ownership=auto", "--takeover=never")
			lab.Eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
			request(t, before, "release\nproved\n")
			p.AwaitLog(t, "a process has asked at @kube-nft for what needs CAP_NET_ADMIN: refused")
			const want = "request to kube-nft: operation not permitted (needs CAP_NET_ADMIN)\n"
			if got := execute(t, slices.Concat(before, []string{lab.Program(t), "release"})...); got.Code != 1 || !strings.HasSuffix(got.Stderr, want) {
				t.Errorf("release: %+v, want %q", got, want)
			}
			if got := runProxy(t, "release"); got.Code != 0 || got.Stdout != "the tables belong to nobody now\n" {
				t.Errorf("release by who may: %+v", got)
			}
			next := objects.Start(t, "--takeover=never")
			next.AwaitLog(t, "another kube-nft programs this network namespace")
			awaitCode(t, p, "127.0.0.1:10256", "/readyz?newest", 200)
			for range 5 { // more than may wait
				request(t, before, "succeed\nready\nproved\n")
			}
			for range 300 {
				lab.Open(t, func() (net.Conn, error) { return net.Dial("unix", "@kube-nft") })
			}
			if got := runProxy(t, "release"); got.Code != 0 {
				t.Errorf("release beside many who say nothing: %+v", got)
			}
			files, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(p.PID()), "fd"))
			if err != nil || len(files) > 120 {
				t.Errorf("the daemon has %d open files, %v", len(files), err)
			}
			p.Stop(t)
			next.AwaitLog(t, "the last kube-nft handed its listening sockets over")
			awaitCode(t, next, "127.0.0.1:10256", "/readyz", 200)
			if log := p.Stderr(); strings.Count(log, "refused") != 1 {
				t.Errorf("not one line about all who were refused:\n%s", log)
			}
			next.Stop(t)
		})
	}
}

// TestSettingsOfPoser: a process that cannot prove CAP_NET_ADMIN has the socket's address and tells settings. No command believes
// them: they could name a kubeconfig, and with it a program that the command would run as its user.
func TestSettingsOfPoser(t *testing.T) {
	t.Parallel()
	lab.New(t)
	k, objects := lab.Open(t, kernel.Open), lab.NewDirectory(t)
	dir := t.TempDir()
	const answer = `{"version": "forged", "settings": "kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nclientConnection: {kubeconfig: %s/config}\n"}` + "\n"
	ran := filepath.Join(dir, "ran")
	forged := `{kind: Config, apiVersion: v1, current-context: x,
clusters: [{name: x, cluster: {server: "https://127.0.0.1:10250", insecure-skip-tls-verify: true}}],
contexts: [{name: x, context: {cluster: x, user: x}}],
users: [{name: x, user: {exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: touch, args: ["` + ran + `"]}}}]}`
	if err := os.WriteFile(filepath.Join(dir, "config"), []byte(forged), 0o644); err != nil {
		t.Fatal(err)
	}
	lab.Start(t, "socat", "TCP-LISTEN:10250,bind=127.0.0.1,fork", "EXEC:sleep 1")
	poser := lab.Open(t, func() (net.Listener, error) { return net.Listen("unix", "@kube-nft") })
	go func() {
		for {
			conn, err := poser.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buf := make([]byte, 64)
				n, _ := conn.Read(buf) // none, from who only looks who is there
				if string(buf[:n]) == "settings\n" {
					fmt.Fprintf(conn, answer, dir)
				}
			}()
		}
	}()
	objects.Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods, 3)))
	p := objects.Start(t)
	lab.Eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
	for _, command := range []string{"diff", "status", "explain 10.244.0.9 " + firstWeb.String() + ":80/tcp"} {
		got := runProxy(t, append(strings.Fields(command), objects.Flags()...)...)
		if !strings.Contains(got.Stderr, "does not prove that it has CAP_NET_ADMIN") || strings.Contains(got.Stdout, "forged") {
			t.Errorf("%s: %+v", command, got)
		}
		runProxy(t, strings.Fields(command)...)
		if _, err := os.Stat(ran); err == nil {
			t.Fatalf("%s runs a program of the poser's", command)
		}
	}
	p.Stop(t)
}
