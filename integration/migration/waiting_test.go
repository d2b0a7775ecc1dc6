package migration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestWaitingEventKernel: while a takeover waits for kube-proxy to end, the Node has an event that names
// the process.
func TestWaitingEventKernel(t *testing.T) {
	t.Parallel()
	lab.New(t)
	server := apiserver.New()
	server.Apply(lab.Node("node-1"))
	if _, err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	kubeconfig, err := server.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	proxy := startNamed(t, "--config=x")
	for _, args := range [][]string{{"migrate", "apply"}, {"--takeover=auto"}} {
		before := len(server.Events())
		argv := slices.Concat(asInit, []string{lab.Program(t)}, args,
			[]string{"--kubeconfig", kubeconfig, "--hostname-override", "node-1"})
		p := lab.Start(t, argv...)
		process := fmt.Sprintf("process %d (kube-proxy -f /dev/null -- --config=x)", proxy.PID())
		p.AwaitLog(t, process)
		lab.Eventually(t, strings.Join(args, " ")+": the event", func() bool {
			return slices.ContainsFunc(server.Events()[before:], func(e *eventsv1.Event) bool {
				r := e.Regarding
				return e.Reason == "WaitingForKubeProxy" && e.Type == "Warning" && strings.Contains(e.Note, process) &&
					fmt.Sprintf("%s %s/%s %s", r.Kind, r.Namespace, r.Name, r.UID) == "Node /node-1 node-1"
			})
		})
		p.Kill()
	}
}
