package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os/exec"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestTopInKernel: top counts each connection once, from outside through this node, from a pod and from the node itself, at
// every address and in both families: new ones, and those that are open.
func TestTopInKernel(t *testing.T) {
	c := newCrossing(t)
	c.publish(t, nil, corev1.ProtocolTCP, nil, endpointState{0, ""})
	c.start(t, "--connection-counters")
	targets := c.targets()
	top := func(meanwhile func()) (newConnections float64, active, omitted int) {
		t.Helper()
		var out bytes.Buffer
		cmd := exec.Command(lab.Program(t), "top", "-o", "json", "--count", "1", "--interval", "2s", "-n", "shop")
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(700 * time.Millisecond) // it has read the counters
		meanwhile()
		var list struct {
			IntervalSeconds float64
			Services        []struct {
				Name         string
				Active       int
				NewPerSecond float64
			}
			Active int
		}
		if err := errors.Join(cmd.Wait(), json.Unmarshal(out.Bytes(), &list)); err != nil {
			t.Fatalf("%v:\n%s", err, &out)
		}
		for _, s := range list.Services {
			if s.Name == "web" {
				newConnections, active = s.NewPerSecond*list.IntervalSeconds, s.Active
			}
		}
		return newConnections, active, list.Active
	}
	for i := range targets { // neighbours are known, nothing is sent again
		_ = targets[i].connect(t, "tcp", 0).Close()
	}
	time.Sleep(100 * time.Millisecond)
	fresh, active, all := top(func() {
		for i := range targets {
			targets[i].connect(t, "tcp", 0)
		}
	})
	if math.Round(fresh) != float64(len(targets)) || active != len(targets) || all != active {
		t.Errorf("%.2f new, %d active, %d active in all; %d were opened", fresh, active, all, len(targets))
	}
	if fresh, active, _ := top(func() {}); fresh != 0 || active != len(targets) {
		t.Errorf("%.2f new, %d active while nothing happens; %d are open", fresh, active, len(targets))
	}
}
