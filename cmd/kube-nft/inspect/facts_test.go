package inspect

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestFacts: what is read below /proc, and what is not there is named.
func TestFacts(t *testing.T) {
	proc := t.TempDir()
	for name, text := range map[string]string{
		"modules":                           "nf_tables 1 2 - Live 0x0\nloop 1 2 - Live 0x0\nip_vs 1 0 - Live 0x0\n",
		"sys/net/ipv4/ip_forward":           "1\n",
		"sys/net/netfilter/nf_x":            "a\tb\n",
		"sys/net/ipv4/conf/all/rp":          strings.Repeat("9", 1000) + "\n",
		"sys/net/ipv4/conf/eth0/rp":         "1\n",
		"thread-self/net/stat/nf_conntrack": "entries found drop\n0000000a 00000001 00000000\n0000000a 00000002 0000000f\n",
	} {
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f := readFacts(t.Context(), proc, false)
	if !slices.Equal(f.Modules, []string{"ip_vs", "nf_tables"}) {
		t.Errorf("modules %v", f.Modules)
	}
	if want := (map[string]uint64{"entries": 10, "found": 3, "drop": 15}); !maps.Equal(f.Conntrack, want) {
		t.Errorf("conntrack %v", f.Conntrack)
	}
	long := f.Sysctls["net.ipv4.conf.all.rp"]
	delete(f.Sysctls, "net.ipv4.conf.all.rp")
	if want := (map[string]string{"net.ipv4.ip_forward": "1", "net.netfilter.nf_x": "a b"}); len(long) != maxSysctl ||
		!maps.Equal(f.Sysctls, want) {
		t.Errorf("sysctls %v, and %d bytes", f.Sysctls, len(long))
	}
	if f.Kernel.Release == "" || f.Kernel.CPUs == 0 {
		t.Errorf("kernel %+v", f.Kernel)
	}
	f = readFacts(t.Context(), t.TempDir(), false)
	for _, what := range []string{"modules: ", "counters of connection tracking: ", "metrics: "} {
		if !slices.ContainsFunc(f.Problems, func(p string) bool { return strings.HasPrefix(p, what) }) {
			t.Errorf("%q is not missing: %q", what, f.Problems)
		}
	}
}
