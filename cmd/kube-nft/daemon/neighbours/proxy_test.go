package neighbours

import (
	"strings"
	"testing"

	"go.uber.org/zap"
)

// TestForeignProxyEvent: the event about the Node says where kube-proxy's rules are.
func TestForeignProxyEvent(t *testing.T) {
	recorded := ""
	w := &Watch{Log: zap.NewNop(), Warn: func(reason, text string) { recorded += reason + ": " + text }}
	w.reportProxy(t.TempDir(), []string{"legacy ip nat", "legacy ip6 nat"})
	const want = "ForeignProxy: kube-proxy programs this node as well, in legacy ip nat, legacy ip6 nat: "
	if !strings.HasPrefix(recorded, want) {
		t.Errorf("got %q, want %q", recorded, want)
	}
}
