package move

import (
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/sync/localhost"
)

// TestCleanupWarnsOfRouteLocalnet: cleanup says what it leaves open, and rollback that kube-proxy may need it.
func TestCleanupWarnsOfRouteLocalnet(t *testing.T) {
	lab.New(t)
	for _, value := range []string{"0", "1"} {
		lab.Sysctl(t, "net.ipv4.conf.all.route_localnet", value)
		want, got := "", ""
		if value == "1" {
			want = localhost.Exposure("/proc/sys")
		}
		if warnExposed(false, func(text string) { got += text }); got != want {
			t.Errorf("with %s, cleanup says %q, want %q", value, got, want)
		}
		got = ""
		warnExposed(true, func(text string) { got += text })
		if said := strings.Contains(got, "kube-proxy's iptables mode needs it"); said != (value == "1") {
			t.Errorf("with %s, rollback says %q", value, got)
		}
	}
}
