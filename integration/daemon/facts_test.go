package daemon

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestFactsInKernel: facts has the daemon's metrics and the tables that nft lists, without source ranges unless they
// are asked for.
func TestFactsInKernel(t *testing.T) {
	t.Parallel()
	lab.New(t)
	lab.Start(t, append([]string{lab.Program(t)}, examples...)...)
	lab.Eventually(t, "the tables", func() bool { return runProxy(t, "ready").Code == 0 })
	const client = "203.0.113.0" // a source range of deploy/examples
	for _, clients := range []bool{false, true} {
		args := []string{"facts", "-o", "json"}
		if clients {
			args = append(args, "--clients")
		}
		out := runProxy(t, args...)
		var f inspect.Facts
		if err := json.Unmarshal([]byte(out.Stdout), &f); err != nil || out.Code != 0 {
			t.Fatalf("%v, %+v", err, out)
		}
		if !strings.Contains(f.Metrics, "\nkube_nft_elements") || strings.Contains(strings.Join(f.Problems, ";"), "metrics") {
			t.Errorf("problems %q, metrics:\n%s", f.Problems, f.Metrics)
		}
		if !strings.Contains(f.Ruleset, "table ip kube-nft {") || !strings.Contains(f.Ruleset, "10.96.0.80 . tcp . 80") {
			t.Errorf("ruleset:\n%s", f.Ruleset)
		}
		if found := strings.Contains(out.Stdout, client); found != clients {
			t.Errorf("with clients %t: %s is there: %t", clients, client, found)
		}
	}
}
