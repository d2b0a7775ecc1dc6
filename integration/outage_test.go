package integration

import (
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kube-nft/kube-nft/integration/netns"
)

// parseObjects reads YAML documents.
func parseObjects(t *testing.T, text string) (objects []map[string]any) {
	t.Helper()
	for _, document := range strings.Split(text, "---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
	return objects
}

// TestServerIsGone takes the API server away from a running kube-nft: what is programmed
// stays and is watched over, /healthz stays well, as no change waits, and when the server is
// back, what happened meanwhile is programmed. How long it is away makes no difference to
// anything but the pauses between attempts, which end at fifteen seconds.
func TestServerIsGone(t *testing.T) {
	t.Parallel()
	netns.New(t)
	k, cluster := openKernel(t), newAPI(t).(*api)
	with := func(clusterIPs ...netip.Addr) []map[string]any {
		text := []string{"apiVersion: v1\nkind: Node\nmetadata: {name: " + scenarioNode + "}\n"}
		for i, clusterIP := range clusterIPs {
			text = append(text, webObjects([]string{"web", "more"}[i], clusterIP, addressesFrom(webPods, 3)))
		}
		return parseObjects(t, strings.Join(text, "---\n"))
	}
	cluster.publish(t, with(firstWeb))
	p := netns.Start(t, append([]string{buildProxy(t), "--hostname-override", scenarioNode}, cluster.flags()...)...)
	eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
	awaitCode(t, p, "127.0.0.1:10256", "/healthz", 200)

	if err := cluster.server.Down(true); err != nil {
		t.Fatal(err)
	}
	cluster.publish(t, with(firstWeb, secondWeb))
	netns.Run(t, "", "nft", "flush", "ruleset")
	eventually(t, "the Service after a flush", func() bool { return holds(t, k, firstWeb) })
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		if code, body, err := fetch("127.0.0.1:10256", path); code != 200 {
			t.Errorf("%s without an API server: %d %s, %v", path, code, body, err)
		}
	}
	if holds(t, k, secondWeb) {
		t.Error("a change came from a server that is gone")
	}

	if err := cluster.server.Down(false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the change that was missed", func() bool { return holds(t, k, firstWeb) && holds(t, k, secondWeb) })
	if err := cluster.server.Down(true); err != nil {
		t.Fatal(err)
	}
	stop(t, p)
	if !holds(t, k, firstWeb) || !holds(t, k, secondWeb) {
		t.Error("the end without an API server took rules away")
	}
}
