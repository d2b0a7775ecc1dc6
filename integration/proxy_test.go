package integration

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kube-nft/kube-nft/integration/netns"
)

// proxyPath is a flag.
var proxyPath = flag.String("proxy", "", "program to test instead of building kube-nft")

// TestMain removes the program that tests have built.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	os.RemoveAll(buildDir())
	os.Exit(code)
}

// buildDir is where this process builds kube-nft.
func buildDir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("kube-nft-test-%d", os.Getpid()))
}

// build builds kube-nft when it is called first.
var build = sync.OnceValue(func() error {
	cmd := exec.Command("go", "build", "-o", filepath.Join(buildDir(), "kube-nft"), "../cmd/kube-nft")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build ../cmd/kube-nft: %w\n%s", err, out)
	}
	return nil
})

// buildProxy builds kube-nft, once for all tests, and returns the program's path.
func buildProxy(t testing.TB) string {
	t.Helper()
	if *proxyPath != "" {
		return *proxyPath
	}
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(buildDir(), "kube-nft")
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
