package daemon

import (
	"net/netip"
	"testing"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// TestServerIsGone takes the API server away from a running kube-nft: what is programmed
// stays and is watched over, /healthz stays well, as no change waits, and when the server is
// back, what happened meanwhile is programmed. How long it is away makes no difference to
// anything but the pauses between attempts, which end at fifteen seconds.
func TestServerIsGone(t *testing.T) {
	t.Parallel()
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	apply := func(server *apiserver.Server, name string, clusterIP netip.Addr) {
		server.Apply(lab.Service("shop", name, clusterIP), lab.Slice("shop", name, 1, lab.FamilyOf(clusterIP),
			lab.Addresses(webPods, 3)))
	}
	server, p := startWithServer(t, func(server *apiserver.Server) {
		server.Apply(lab.Node(lab.NodeName))
		apply(server, "web", firstWeb)
	})
	lab.Eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
	awaitCode(t, p, "127.0.0.1:10256", "/healthz", 200)

	if err := server.Down(true); err != nil {
		t.Fatal(err)
	}
	apply(server, "more", secondWeb)
	lab.Run(t, "", "nft", "flush", "ruleset")
	lab.Eventually(t, "the Service after a flush", func() bool { return holds(t, k, firstWeb) })
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		if code, body, err := fetch("127.0.0.1:10256", path); code != 200 {
			t.Errorf("%s without an API server: %d %s, %v", path, code, body, err)
		}
	}
	if holds(t, k, secondWeb) {
		t.Error("a change came from a server that is gone")
	}

	if err := server.Down(false); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the change that was missed", func() bool { return holds(t, k, firstWeb) && holds(t, k, secondWeb) })
	if err := server.Down(true); err != nil {
		t.Fatal(err)
	}
	p.Stop(t)
	if !holds(t, k, firstWeb) || !holds(t, k, secondWeb) {
		t.Error("the end without an API server took rules away")
	}
}
