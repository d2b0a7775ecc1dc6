package main

import (
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/netns"
	"github.com/kube-nft/kube-nft/nft/legacy"
)

func TestCleanup(t *testing.T) {
	for _, args := range [][]string{{"cleanup"}, {"--cleanup", "--cluster-cidr=10.0.0.0/8"}} {
		t.Run(args[0], func(t *testing.T) { checkCleanup(t, args...) })
	}
}

func checkCleanup(t *testing.T, args ...string) {
	program(t)
	code, stdout, stderr := kubeNFT(t, args...)
	const first = "kube-nft: no rules of kube-proxy's are in place: new connections to Services are not answered until a proxy is started\n"
	if code != exitOK || stdout != "" || !strings.HasPrefix(stderr, first) || !strings.Contains(stderr, "table ip kube-nft, table ip6 kube-nft; connections") {
		t.Errorf("exit %d, %q, %s", code, stdout, stderr)
	}
	if left := netns.Run(t, "", "nft", "list", "tables"); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

func TestCleanupOfNothing(t *testing.T) {
	netns.New(t)
	for _, command := range []string{"cleanup", "migrate rollback"} {
		code, stdout, stderr := kubeNFT(t, strings.Fields(command)...)
		if code != exitOK || stdout != "" || stderr != "kube-nft: nothing to remove: no table kube-nft in this network namespace\n" {
			t.Errorf("%s: exit %d, %q, %q", command, code, stdout, stderr)
		}
	}
}

func TestUnseen(t *testing.T) {
	inventory := legacy.Inventory{Parts: []legacy.Part{{}, {Needs: "CAP_NET_RAW"}}}
	if got := unseen(&inventory); got != "CAP_NET_RAW" {
		t.Errorf("got %q", got)
	}
	if got := unseen(new(legacy.Inventory)); got != "" {
		t.Errorf("of nothing %q", got)
	}
}
