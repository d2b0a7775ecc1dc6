package daemon

import (
	"encoding/json"
	"errors"
	"math"
	"os/exec"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestTopInKernel: top counts each connection once, from outside through this node, from a pod and from the node
// itself, at every address and in both families: new ones, and those that are open.
func TestTopInKernel(t *testing.T) {
	t.Parallel()
	c := newCrossing(t)
	c.publish(t, nil, corev1.ProtocolTCP, nil, endpointState{0, ""})
	c.start(t, "--connection-counters")
	targets := c.targets()
	for i := range targets { // neighbours are known, nothing is sent again
		_ = targets[i].connect(t, "tcp", 0).Close()
	}
	lab.Eventually(t, "the end of all connections", func() bool {
		_, active, _ := c.top(t, func() {})
		return active == 0
	})
	fresh, active, all := c.top(t, func() {
		for i := range targets {
			targets[i].connect(t, "tcp", 0)
		}
	})
	if math.Round(fresh) != float64(len(targets)) || active != len(targets) || all != active {
		t.Errorf("%.2f new, %d active, %d active in all; %d were opened", fresh, active, all, len(targets))
	}
	if fresh, active, _ := c.top(t, func() {}); fresh != 0 || active != len(targets) {
		t.Errorf("%.2f new, %d active while nothing happens; %d are open", fresh, active, len(targets))
	}
}

// top runs the command, does something when it has read the counters, and returns what it says of Service
// web: all connections that it has counted as new, and the active ones in the end.
func (c *crossing) top(t *testing.T, meanwhile func()) (newConnections float64, active, all int) {
	t.Helper()
	cmd := exec.Command(lab.Program(t), "top", "-o", "json", "--interval", "100ms", "-n", "shop")
	stdout, err := cmd.StdoutPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() // killed
	defer cmd.Process.Kill()
	list := struct {
		Time            time.Time // when it began to read the counters
		IntervalSeconds float64
		Services        []struct {
			Name         string
			Active       int
			NewPerSecond float64
		}
		Active int
	}{}
	var done time.Time
	for lists := json.NewDecoder(stdout); done.IsZero() || !list.Time.After(done); {
		list.Services = nil
		if err := lists.Decode(&list); err != nil {
			t.Fatal(err)
		}
		for _, s := range list.Services {
			if s.Name == "web" {
				newConnections, active = newConnections+s.NewPerSecond*list.IntervalSeconds, s.Active
			}
		}
		if done.IsZero() {
			meanwhile()
			done = time.Now()
		}
	}
	return newConnections, active, list.Active
}
