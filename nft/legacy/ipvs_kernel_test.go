package legacy

import (
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy/legacytest"
)

// TestRemoveIPVS removes the chains and ipsets of the IPVS mode, and leaves the sets and
// the rules of an administrator.
func TestRemoveIPVS(t *testing.T) {
	for _, b := range []Backend{Xtables, Compat} {
		t.Run(string(b), func(t *testing.T) {
			n := newNode(t)
			lab.Run(t, "create ADMIN hash:ip\nadd ADMIN 192.0.2.1\ncreate KUBE-ADMIN hash:ip\n", "ipset", "restore")
			foreignSets := lab.Run(t, "", "ipset", "save")
			var before, after string
			for _, f := range nft.Families {
				lab.Run(t, shape(f).IPSets(), "ipset", "restore")
				restore(t, f, b, shape(f).IPVS())
				before += legacytest.Foreign(save(t, f, b))
			}
			remove(t, n, Selector{})
			if got := lab.Run(t, "", "ipset", "save"); got != foreignSets {
				t.Errorf("ipsets left:\n%swant:\n%s", got, foreignSets)
			}
			for _, f := range nft.Families {
				saved := save(t, f, b)
				after += legacytest.Foreign(saved)
				if left := legacytest.Proxys(saved); left != "" {
					t.Errorf("left of kube-proxy's:\n%s", left)
				}
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("foreign rules (-before +after):\n%s", diff)
			}
			if inv := take(t, n); !inv.Clean() {
				t.Errorf("not clean: %v", inv.Plan())
			}
		})
	}
}

// TestRemoveDevice removes kube-ipvs0 with its address.
func TestRemoveDevice(t *testing.T) {
	n := newNode(t)
	if out, err := exec.Command("ip", "link", "add", Device, "type", "dummy").CombinedOutput(); err != nil {
		t.Skipf("this kernel has no dummy devices: %s", out)
	}
	lab.Run(t, "", "ip", "address", "add", "10.96.0.1/32", "dev", Device)
	if inv := take(t, n); inv.Clean() {
		t.Error("the device was not found")
	}
	remove(t, n, Selector{})
	if inv := take(t, n); !inv.Clean() {
		t.Errorf("not clean: %v", inv.Plan())
	}
}

// TestSetInUse keeps a set of kube-proxy's that a foreign rule uses.
func TestSetInUse(t *testing.T) {
	n := newNode(t)
	lab.Run(t, "create KUBE-LOOP-BACK hash:ip,port,ip\ncreate KUBE-IPVS-IPS hash:ip\n", "ipset", "restore")
	lab.Run(t, "", "iptables-legacy", "-A", "INPUT", "-m", "set", "--match-set", "KUBE-IPVS-IPS", "dst", "-j", "ACCEPT")
	remove(t, n, Selector{Backends: []Backend{IPVS}})
	inv := take(t, n)
	part := inv.Parts[len(inv.Parts)-1]
	want := []Set{{Name: "KUBE-IPVS-IPS", References: 1}}
	if diff := cmp.Diff(want, part.Sets); diff != "" || !inv.Clean() {
		t.Errorf("clean %v, sets (-want +got):\n%s", inv.Clean(), diff)
	}
}

// TestForeignDevice leaves a device that has the name but is of another kind.
func TestForeignDevice(t *testing.T) {
	n := newNode(t)
	lab.Run(t, "", "ip", "link", "add", Device, "type", "veth", "peer", "name", "peer")
	remove(t, n, Selector{})
	lab.Run(t, "", "ip", "link", "show", Device)
}
