package main

import (
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

func TestCleanup(t *testing.T) {
	for _, args := range [][]string{{"cleanup"}, {"--cleanup", "--cluster-cidr=10.0.0.0/8"}} {
		t.Run(args[0], func(t *testing.T) { checkCleanup(t, args...) })
	}
}

func checkCleanup(t *testing.T, args ...string) {
	program(t)
	code, stdout, stderr := kubeNFT(t, args...)
	const first = "kube-nft: no rules of kube-proxy's are in place: new connections to Services are not answered until " +
		"a proxy is started\n"
	if code != exitOK || stdout != "" || !strings.HasPrefix(stderr, first) ||
		!strings.Contains(stderr, "table ip kube-nft, table ip6 kube-nft; connections") {
		t.Errorf("exit %d, %q, %s", code, stdout, stderr)
	}
	if left := lab.Run(t, "", "nft", "list", "tables"); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// TestRollbackWithoutKubeProxy: without kube-proxy's rules rollback removes nothing, and refuses as
// soon as one IP family would be without; with them it removes our tables.
func TestRollbackWithoutKubeProxy(t *testing.T) {
	program(t)
	const hint = "; nothing was removed, our tables go on serving: start kube-proxy on this node and run this again " +
		"with --wait, " +
		"or remove them without a successor with kube-nft cleanup\n"
	before := lab.Run(t, "", "nft", "-s", "list", "ruleset")
	checkRefused := func(families string) {
		t.Helper()
		code, stdout, stderr := kubeNFT(t, "migrate", "rollback")
		if want := "kube-nft: no rules of kube-proxy's are in place for " + families + hint; code != exitFailed ||
			stdout != "" || stderr != want {
			t.Errorf("exit %d, %q, %q, want %q", code, stdout, stderr, want)
		}
	}
	checkRefused("family ip and family ip6")
	if after := lab.Run(t, "", "nft", "-s", "list", "ruleset"); after != before {
		t.Error("something was removed")
	}
	proxyTable := func(family, keyType, elements string) {
		lab.Run(t, "table "+family+" kube-proxy { map service-ips { type "+keyType+" . inet_proto . inet_service : verdict; "+
			"elements = { "+elements+" }; }; }\n", "nft", "-f", "-")
	}
	proxyTable("ip", "ipv4_addr", "10.96.0.10 . tcp . 80 : accept")
	checkRefused("family ip6")
	proxyTable("ip6", "ipv6_addr", "fd00::1 . tcp . 80 : accept")
	code, _, stderr := kubeNFT(t, "migrate", "rollback")
	if want := "kube-nft: kube-proxy's rules do not serve 2 of 3 frontends that our tables serve: 10.96.0.2:53/udp of " +
		"kube-system/dns:dns, " +
		"198.51.100.7:80/tcp of shop/web:http" + hint; code != exitFailed || stderr != want {
		t.Errorf("exit %d, %q, want %q", code, stderr, want)
	}
	proxyTable("ip", "ipv4_addr", "10.96.0.2 . udp . 53 : accept, 198.51.100.7 . tcp . 80 : accept")
	code, _, stderr = kubeNFT(t, "migrate", "rollback")
	if left := lab.Run(t, "", "nft", "list", "tables"); code != exitOK || strings.Contains(left, "kube-nft") {
		t.Errorf("beside kube-proxy's rules: exit %d, %s, left behind: %s", code, stderr, left)
	}
}

// TestRollbackWait: with --wait it looks for kube-proxy's rules until the time is over.
func TestRollbackWait(t *testing.T) {
	program(t)
	code, _, stderr := kubeNFT(t, "migrate", "rollback", "--wait", "--timeout", "1s")
	if code != exitFailed ||
		!strings.Contains(stderr, "no rules of kube-proxy's are in place for family ip and family ip6; nothing was removed") {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

func TestCleanupOfNothing(t *testing.T) {
	lab.New(t)
	for _, command := range []string{"cleanup", "migrate rollback"} {
		code, stdout, stderr := kubeNFT(t, strings.Fields(command)...)
		if code != exitOK || stdout != "" ||
			stderr != "kube-nft: nothing to remove: no table kube-nft in this network namespace\n" {
			t.Errorf("%s: exit %d, %q, %q", command, code, stdout, stderr)
		}
	}
}
