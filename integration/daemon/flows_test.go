package daemon

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestFlowsInKernel: flows prints one line for each connection that ends, with its client's name for the Service, at
// every address and in both families; and it sets the kernel's accounting back when it is interrupted.
func TestFlowsInKernel(t *testing.T) {
	t.Parallel()
	const accounting = "/proc/sys/net/netfilter/nf_conntrack_acct"
	c := newCrossing(t)
	c.publish(t, nil, corev1.ProtocolTCP, nil, endpointState{0, ""})
	c.start(t)
	lab.Sysctl(t, "net.netfilter.nf_conntrack_acct", "0")
	cmd := exec.Command(lab.Program(t), "flows", "-o", "json", "-n", "shop", "web")
	stdout, err := cmd.StdoutPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	value := func() string {
		text, _ := os.ReadFile(accounting)
		return string(text)
	}
	lab.Eventually(t, "accounting", func() bool { return value() == "1\n" })
	want := make(map[string]bool) // by client and frontend
	for _, target := range c.targets() {
		conn := target.connect(t, "tcp", 0)
		want[target.at.String()] = true
		_ = conn.Close()
	}
	table := lab.Open(t, conntrack.Open)
	for _, family := range tracker.Families {
		flows, err := table.Flows(t.Context(), conntrack.Filter{Family: family, Translated: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := table.Delete(t.Context(), flows, nil); err != nil {
			t.Fatal(err)
		}
	}
	stop := time.AfterFunc(lab.Patience, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	documents := json.NewDecoder(stdout)
	for n := range c.targets() {
		var d struct {
			Kind, Service, Frontend string
			Sent, Returned          struct{ Packets, Bytes uint64 }
			DurationSeconds         *float64
		}
		if err := documents.Decode(&d); err != nil {
			t.Fatalf("after %d connections: %v", n, err)
		}
		if d.Kind != "EndedConnection" || d.Service != "web" || !want[d.Frontend] || d.Sent.Packets < 2 ||
			d.Returned.Packets < 1 || d.Sent.Bytes < 20*d.Sent.Packets {
			t.Errorf("got %+v", d)
		}
	}
	_ = cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	if value() != "0\n" {
		t.Errorf("accounting is %q after the command", value())
	}
}
