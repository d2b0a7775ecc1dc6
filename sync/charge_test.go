package sync

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestWalksAreCharged: where two namespaces share a commit, the time that the kernel walks is charged to the one that
// has changed a verdict, and not to the one that has changed more elements.
func TestWalksAreCharged(t *testing.T) {
	tr := tracker.New(tracker.Config{NodeName: lab.NodeName})
	web := func(namespace string, ip byte, first string, endpoints int) {
		t.Helper()
		addr := netip.AddrFrom4([4]byte{10, 96, 0, ip})
		slice := lab.Slice(namespace, "web", 1, lab.FamilyOf(addr), lab.Addresses(netip.MustParseAddr(first), endpoints))
		if err := tr.SetService(lab.Service(namespace, "web", addr)); err != nil {
			t.Fatal(err)
		}
		if err := tr.SetSlice(slice); err != nil {
			t.Fatal(err)
		}
	}
	charged := make(map[string]time.Duration)
	l := &Loop{ruleset: services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}})}
	l.options.Charge = func(namespace string, work time.Duration) { charged[namespace] += work }
	sync := func() {
		l.ruleset.Committed()
		l.ruleset.Apply(tr.Take())
		l.ruleset.Changes()
	}
	web("calm", 1, "10.1.0.1", 200)
	web("loud", 2, "10.2.0.1", 0)
	sync()
	web("calm", 1, "10.3.0.1", 200)
	web("loud", 2, "10.2.0.1", 1)
	sync()
	l.charge(44*time.Millisecond, 42*time.Millisecond)
	if calm, loud := charged["calm"], charged["loud"]; calm > 7*time.Millisecond || calm+loud < 43*time.Millisecond {
		t.Errorf("calm pays %v and loud %v of 44ms", calm, loud)
	}
}
