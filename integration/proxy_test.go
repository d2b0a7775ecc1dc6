package integration

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/netns"
)

// buildProxy builds kube-nft for the duration of a test and returns the program's path.
func buildProxy(t testing.TB) string {
	t.Helper()
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

// A source is where kube-nft gets its objects from.
type source interface {
	flags() []string                             // that make kube-nft use it
	publish(t testing.TB, world []map[string]any) // makes these the objects that exist, in this order
}

// sources are the kinds of sources by the names that the flag -source takes.
var sources = map[string]func(testing.TB) source{
	"manifests": newManifests,
}

// manifests is a directory with one file that holds all objects.
type manifests struct{ dir string }

// newManifests returns a source whose directory lives as long as the test.
func newManifests(t testing.TB) source { return &manifests{dir: t.TempDir()} }

// flags names the directory.
func (m *manifests) flags() []string { return []string{"--manifests", m.dir} }

// publish replaces the file in one step, so that it is never seen half-written.
func (m *manifests) publish(t testing.TB, world []map[string]any) {
	t.Helper()
	var text bytes.Buffer
	for _, object := range world {
		document, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString("---\n")
		text.Write(append(document, '\n'))
	}
	draft := filepath.Join(filepath.Dir(m.dir), filepath.Base(m.dir)+".draft")
	if err := os.WriteFile(draft, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(draft, filepath.Join(m.dir, "objects.yaml")); err != nil {
		t.Fatal(err)
	}
}
