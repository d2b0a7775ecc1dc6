package legacy

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy/legacytest"
)

// newWatch returns a Watch of the test's network namespace.
func newWatch(t testing.TB) *Watch {
	t.Helper()
	w, err := NewWatch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// TestWatchKernel: kube-proxy is found in each place as soon as it has rules there, and no more when
// they have gone; rules of others, and chains that had to stay, are not taken for its.
func TestWatchKernel(t *testing.T) {
	const strangers = "*nat\n:KUBE-FOREIGN - [0:0]\n:DOCKER - [0:0]\n-A OUTPUT -j DOCKER\n-A DOCKER -j RETURN\nCOMMIT\n"
	for _, tt := range []struct {
		name string
		load func(*testing.T, nft.Family)
		want string
		sel  Selector
	}{
		{"legacy", func(t *testing.T, f nft.Family) {
			restore(t, f, Xtables, legacytest.Shape{Family: f, Services: 20, Endpoints: 2}.IPTables())
		}, "legacy %s nat", Selector{Backends: []Backend{Xtables}}},
		{"nft", func(t *testing.T, f nft.Family) {
			restore(t, f, Compat, legacytest.Shape{Family: f, Services: 20, Endpoints: 2}.IPTables())
		}, "nft-compat %s nat", Selector{Backends: []Backend{Compat}}},
		{"nftables", func(t *testing.T, f nft.Family) {
			lab.Run(t, legacytest.Shape{Family: f, Services: 20, Endpoints: 2}.NFTables(), "nft", "-f", "-")
		}, "kube-proxy-nftables %s", Selector{Backends: []Backend{ProxyTables}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := newNode(t)
			w := newWatch(t)
			look := func(when string, want ...string) {
				t.Helper()
				for range 2 { // the second look has the first one's summary
					got, err := w.Look(t.Context())
					if diff := cmp.Diff(want, got); err != nil || diff != "" {
						t.Errorf("%s: %v (-want +got):\n%s", when, err, diff)
					}
				}
			}
			look("an empty namespace")
			for _, f := range nft.Families {
				restore(t, f, Compat, strangers)
				restore(t, f, Xtables, strangers)
			}
			look("rules of others")
			tt.load(t, nft.IP)
			look("IPv4", fmt.Sprintf(tt.want, "ip"))
			tt.load(t, nft.IP6)
			look("both", fmt.Sprintf(tt.want, "ip"), fmt.Sprintf(tt.want, "ip6"))
			if tt.name != "nftables" { // a foreign rule keeps the chain
				lab.Run(t, "", "iptables-"+tt.name, "-t", "nat", "-A", "DOCKER", "-p", "tcp", "-j", "KUBE-SERVICES")
			}
			if err := node.Remove(t.Context(), tt.sel); err != nil {
				t.Fatal(err)
			}
			look("after the removal")
			tt.load(t, nft.IP)
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			netAdmin := [2]unix.CapUserData{{Effective: 1 << unix.CAP_NET_ADMIN, Permitted: 1 << unix.CAP_NET_ADMIN}}
			if err := unix.Capset(&header, &netAdmin[0]); err != nil { // of this thread
				t.Fatal(err)
			}
			look("with CAP_NET_ADMIN alone", fmt.Sprintf(tt.want, "ip"))
		})
	}
}

// BenchmarkWatch looks at a node with some rules of others.
func BenchmarkWatch(b *testing.B) {
	w := newWatch(b)
	for b.Loop() {
		if _, err := w.Look(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
