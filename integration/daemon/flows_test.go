package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// endedFlows are the documents of a running kube-nft flows.
type endedFlows struct {
	cmd *exec.Cmd
	*json.Decoder
}

// An endedFlow is one of them.
type endedFlow struct {
	Kind, Service, Frontend, Protocol string
	Sent, Returned                    struct{ Packets, Bytes uint64 }
	DurationSeconds                   *float64
}

// startFlows runs kube-nft flows for shop/web, and waits until the kernel counts.
func startFlows(t *testing.T) endedFlows {
	t.Helper()
	listen := endListeners(t)
	cmd := exec.Command(lab.Program(t), "flows", "-o", "json", "-n", "shop", "web")
	stdout, err := cmd.StdoutPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(2*lab.Patience, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		stop.Stop()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lab.Eventually(t, "flows listens", func() bool { return endListeners(t) > listen && accounting(t) == 2 })
	return endedFlows{cmd, json.NewDecoder(stdout)}
}

func (f *endedFlows) next(t *testing.T) (d endedFlow) {
	t.Helper()
	if err := f.Decode(&d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestFlowsInKernel: flows prints one line for each connection that ends, with its client's name for the Service, at
// every address, in both families and over a restart of the daemon, and what the lines have is what clients sent and
// got. It sets the kernel's accounting back when it is interrupted.
func TestFlowsInKernel(t *testing.T) {
	for _, tt := range flowProtocols {
		t.Run(tt.network, func(t *testing.T) {
			t.Parallel()
			c := newUncounted(t, tt.protocol)
			proxy := c.start(t)
			flows := startFlows(t)
			for family := range 2 {
				at := make(map[string]int)
				for _, target := range c.targets() {
					at[target.at.String()]++
				}
				want, connections := c.moveAll(t, family, tt.network, tt.n)
				endFlows(t, tt.number)
				var got flowCounts
				for range connections {
					d := flows.next(t)
					if at[d.Frontend]--; d.Kind != "EndedConnection" || d.Service != "web" || d.Protocol != tt.network ||
						d.DurationSeconds == nil || at[d.Frontend] < 0 {
						t.Errorf("got %+v", d)
					}
					got.bytes.add(moved{float64(d.Sent.Bytes), float64(d.Returned.Bytes)})
					got.packets.add(moved{float64(d.Sent.Packets), float64(d.Returned.Packets)})
				}
				got.compare(t, fmt.Sprint("family ", family), want, family, tt.protocol)
				proxy.Stop(t)
				proxy = c.start(t)
			}
			_ = flows.cmd.Process.Signal(os.Interrupt)
			if flows.More() {
				t.Error("there are more lines")
			}
			if err := flows.cmd.Wait(); err != nil {
				t.Errorf("interrupted: %v", err)
			}
			if accounting(t) > 0 {
				t.Error("the kernel counts after the command")
			}
		})
	}
}
