package packets

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// besidePlugins are the behaviour cases that TestPlugins runs: those with node ports, load-balancer IPs, external
// IPs and cluster IPs, both policies, affinity, hairpins and masquerading.
var besidePlugins = []string{
	"clusterip-general", "external-policy-cluster", "external-policy-local", "hairpin", "masquerade-base",
	"session-affinity",
}

// TestPlugins runs behaviour cases beside the rules of network plug-ins, written before kube-nft starts and after it:
// of two chains with one hook and one priority, the kernel asks the later one first.
func TestPlugins(t *testing.T) {
	lab.Require(t)
	paths, err := filepath.Glob("testdata/plugins/*.nft")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no rules of plug-ins: %v", err)
	}
	binary := lab.Program(t)
	for _, path := range paths {
		rules, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, when := range []string{"before", "after"} {
			for _, name := range besidePlugins {
				c, err := loadCase(filepath.Join("testdata/cases", name+".yaml"))
				if err != nil {
					t.Fatal(err)
				}
				plugin := strings.TrimSuffix(filepath.Base(path), ".nft")
				t.Run(plugin+" "+when+"/"+c.Name, func(t *testing.T) {
					t.Parallel()
					load := func() { lab.Run(t, "", "nft", "-f", rules) }
					runCaseBeside(t, c, binary, load, when == "before")
				})
			}
		}
	}
}

// runCaseBeside plays a case with rules that load writes.
func runCaseBeside(t *testing.T, c behaviourCase, binary string, load func(), before bool) {
	b, w := startCase(t, c, binary, newManifests, func() {
		if before {
			load()
		}
	})
	if !before {
		load()
	}
	playCase(t, b, w, c)
}
