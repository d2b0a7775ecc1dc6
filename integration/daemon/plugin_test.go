package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
)

// pluginNodes are two nodes with a daemon each, in namespaces of their own, and an API server that runs the program
// there.
type pluginNodes struct {
	t          *testing.T
	plugin     string
	kubeconfig string
	namespaces map[string]*lab.Namespace
}

func newPluginNodes(t *testing.T) *pluginNodes {
	t.Helper()
	lab.Require(t)
	n := &pluginNodes{t: t, plugin: filepath.Join(t.TempDir(), "kubectl-kube_nft"),
		namespaces: make(map[string]*lab.Namespace)}
	program, err := filepath.Abs(lab.Program(t))
	if err := errors.Join(err, os.Symlink(program, n.plugin)); err != nil {
		t.Fatal(err)
	}
	server := apiserver.New()
	t.Cleanup(server.Close)
	if _, err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if n.kubeconfig, err = server.Kubeconfig(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		namespace, err := lab.NewNamespace()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { namespace.Close() })
		n.namespaces[name] = namespace
		var daemon *lab.Process
		err = namespace.Do(func() error {
			daemon, err = lab.StartProcess(append([]string{program}, examples...)...)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(daemon.Kill)
		server.Apply(lab.Node(name), lab.Pod(name))
	}
	server.RunCommands(func(ctx context.Context, pod *corev1.Pod, args []string, stdin io.Reader,
		stdout, stderr io.Writer) int {
		cmd := exec.CommandContext(ctx, program, args[1:]...)
		cmd.Stdout, cmd.Stderr = stdout, stderr
		input, err := cmd.StdinPipe()
		if err == nil {
			err = n.namespaces[pod.Spec.NodeName].Do(cmd.Start)
		}
		if err != nil {
			return 126
		}
		go func() {
			_, _ = io.Copy(input, stdin) // it ends with the connection
			input.Close()
		}()
		_ = cmd.Wait() // the exit code says it
		return cmd.ProcessState.ExitCode()
	})
	lab.Eventually(t, "both daemons", func() bool {
		code, _ := n.run("status")
		return code == 0
	})
	return n
}

// run runs the plug-in to its end.
func (n *pluginNodes) run(args ...string) (code int, stdout string) {
	n.t.Helper()
	cmd := exec.Command(n.plugin, append(args, "--kubeconfig", n.kubeconfig)...)
	out, err := cmd.Output()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		n.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// tracing counts the nodes that have a table of trace.
func (n *pluginNodes) tracing() (count int) {
	n.t.Helper()
	for _, namespace := range n.namespaces {
		err := namespace.Do(func() error {
			out, err := exec.Command("nft", "list", "tables").Output()
			if strings.Contains(string(out), "kube-nft-trace-") {
				count++
			}
			return err
		})
		if err != nil {
			n.t.Fatal(err)
		}
	}
	return count
}

// TestPluginInKernel: kubectl kube-nft with the program itself on two nodes. What it leaves running there ends with it,
// also if it is killed.
func TestPluginInKernel(t *testing.T) {
	n := newPluginNodes(t)
	if code, out := n.run("status"); code != 0 || !strings.Contains(out, "\nkube-nft serves on 2 of 2 nodes\n") {
		t.Errorf("status: exit %d\n%s", code, out)
	}
	if code, out := n.run("diff"); code != 0 || !strings.Contains(out, "0 of 2 nodes differ") {
		t.Errorf("diff: exit %d\n%s", code, out)
	}
	code, out := n.run("explain", "203.0.113.7", "198.51.100.9:7777/udp")
	if code != 0 || !strings.HasPrefix(out, "2 nodes (a, b), as a says:\n203.0.113.7 -> 198.51.100.9:7777/udp goes to ") {
		t.Errorf("explain: exit %d\n%s", code, out)
	}
	code, out = n.run("top", "-o", "json", "--count", "1", "--interval", "100ms", "--rows", "0")
	var top struct {
		Nodes    int
		Services []struct{ Node, Name string }
	}
	if err := json.Unmarshal([]byte(out), &top); err != nil || code != 0 || top.Nodes != 2 || len(top.Services)%2 != 0 ||
		len(top.Services) == 0 {
		t.Errorf("top: exit %d, %v\n%s", code, err, out)
	}
	report := filepath.Join(t.TempDir(), "report.tar.gz")
	if code, out := n.run("bugreport", "--file", report); code != 0 {
		t.Errorf("bugreport: exit %d\n%s", code, out)
	}
	for file, want := range map[string]string{"nodes/b/metrics.txt": "kube_nft_elements",
		"nodes/b/facts.json": `"release": "`, "nodes/a/ruleset.nft": "table ip6 kube-nft {",
		"CONTENTS.txt": "nodes/a/log.txt  not read: "} {
		held := lab.Run(t, "", "tar", "--extract", "--to-stdout", "--file", report, "kube-nft-bugreport/"+file)
		if !strings.Contains(held, want) {
			t.Errorf("%s lacks %q:\n%.300s", file, want, held)
		}
	}
	for _, signal := range []os.Signal{os.Interrupt, os.Kill} {
		cmd := exec.Command(n.plugin, "trace", "shop/web", "--kubeconfig", n.kubeconfig)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lab.Eventually(t, "traces on both nodes", func() bool { return n.tracing() == 2 })
		_ = cmd.Process.Signal(signal)
		_ = cmd.Wait()
		lab.Eventually(t, "the end of the traces after "+signal.String(), func() bool { return n.tracing() == 0 })
	}
}
