package packets

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// followTime is how soon an address that appears on the node or leaves it must be followed, even on a busy
// machine: far sooner than by the daemon's own look, once a minute.
const followTime = 15 * time.Second

// TestNodePortAddressesAreFollowed gives the node addresses and takes them away again while
// kube-nft runs: node ports are served at those in the ranges that it was given, and
// nowhere else, so that other sockets of the node keep their ports.
func TestNodePortAddressesAreFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := netip.MustParseAddr("198.51.100.7")
	b := newBench(t, append([]netip.Addr{elsewhere}, nodeAddresses...),
		[]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")})
	heard, objects := lab.ListenToNotices(t), lab.NewDirectory(t)
	objects.Write(t, "objects.yaml", newMovingState(rand.New(rand.NewPCG(1, 0))).manifest("tick"))
	p := objects.Start(t, "--nodeport-addresses=192.168.0.0/24,fd00:192:168::/64")
	t.Cleanup(func() { logOnFailure(t, p) })
	heard.Next(t, lab.About("shop/tick:http"))
	served := func(addr netip.Addr) bool {
		f := flow{From: clientOf(addr), Via: "external", Proto: "tcp", To: netip.AddrPortFrom(addr, movingNodePort)}
		outcomes, err := b.try(f, 4)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range outcomes {
			if o.result != delivered || o.endpoint.Port() != 8080 {
				return false
			}
		}
		return true
	}
	for _, addr := range nodeAddresses {
		if !served(addr) {
			t.Errorf("the node port is not served at %s", addr)
		}
	}
	if served(elsewhere) || served(netip.MustParseAddr("192.168.0.9")) {
		t.Error("the node port is served at an address out of the ranges, or one that is not the node's")
	}
	for _, addr := range []netip.Addr{netip.MustParseAddr("192.168.0.9"), netip.MustParseAddr("fd00:192:168::9")} {
		before := time.Now()
		if err := lab.AddAddress(b.external.name, netip.PrefixFrom(addr, addr.BitLen())); err != nil {
			t.Fatal(err)
		}
		heard.Next(t, nodePortAddress(unix.NFT_MSG_NEWSETELEM))
		if took := time.Since(before); took > followTime || !served(addr) {
			t.Errorf("%s appeared: served %t after %s", addr, served(addr), took)
		}
		before = time.Now()
		if err := lab.RemoveAddress(b.external.name, netip.PrefixFrom(addr, addr.BitLen())); err != nil {
			t.Fatal(err)
		}
		heard.Next(t, nodePortAddress(unix.NFT_MSG_DELSETELEM))
		if took := time.Since(before); took > followTime || served(addr) {
			t.Errorf("%s went: served %t after %s", addr, served(addr), took)
		}
	}
}

// nodePortAddress returns a test for notices about the addresses of node ports.
func nodePortAddress(kind uint16) func(lab.Notice) bool {
	return func(n lab.Notice) bool {
		return n.Kind == kind && n.Attribute(unix.NFTA_SET_ELEM_LIST_SET) == "node-port-addresses"
	}
}

// clientOf returns a client outside the cluster in the family of an address.
func clientOf(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return netip.MustParseAddr("203.0.113.2")
	}
	return netip.MustParseAddr("2001:db8:113::2")
}
