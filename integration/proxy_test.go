package integration

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/netns"
)

// proxyPath is a flag.
var proxyPath = flag.String("proxy", "", "program to test instead of building kube-nft")

// buildProxy builds kube-nft for the duration of a test and returns the program's path.
func buildProxy(t testing.TB) string {
	t.Helper()
	if *proxyPath != "" {
		return *proxyPath
	}
	path := filepath.Join(t.TempDir(), "kube-nft")
	cmd := exec.Command("go", "build", "-o", path, "../cmd/kube-nft")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build ../cmd/kube-nft: %v\n%s", err, out)
	}
	return path
}

// startProxy starts kube-nft in the current namespace.
func startProxy(t testing.TB, binary string, settings proxySettings, objects source) *netns.Process {
	t.Helper()
	argv := append([]string{binary}, settings.flags()...)
	return netns.Start(t, append(argv, objects.flags()...)...)
}

// flags returns the settings as kube-nft's flags.
func (s *proxySettings) flags() []string {
	flags := []string{"--hostname-override", s.NodeName, "--min-sync-period", "10ms"}
	if s.ClusterCIDR != "" {
		flags = append(flags, "--cluster-cidr", s.ClusterCIDR)
	}
	if s.MasqueradeAll {
		flags = append(flags, "--masquerade-all")
	}
	if len(s.NodePortAddresses) > 0 {
		flags = append(flags, "--nodeport-addresses", strings.Join(s.NodePortAddresses, ","))
	}
	return flags
}
