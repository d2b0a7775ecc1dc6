package kernel

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
)

func TestProbe(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	features, err := k.Probe(t.Context())
	if err != nil {
		lab.SkipOrFail(t, "%v", err)
	}
	if !features.IP6 {
		t.Error("no IPv6")
	}
	if features.Lacks != (nft.Lacks{}) {
		t.Errorf("lacks %+v", features.Lacks)
	}
	t.Logf("%+v", features)
	if got := lab.Run(t, "", "nft", "list", "ruleset"); got != "" {
		t.Errorf("left behind:\n%s", got)
	}
}

// TestProbesConcur: processes that probe at the same time, and one that flushes the ruleset, do not make
// the kernel look as if it lacked something.
func TestProbesConcur(t *testing.T) {
	lab.New(t)
	done := make(chan struct{})
	var all sync.WaitGroup
	for range 3 {
		k := lab.Open(t, Open)
		all.Go(func() {
			for range 20 {
				if features, err := k.Probe(t.Context()); err != nil || !features.IP6 || features.Lacks != (nft.Lacks{}) {
					t.Errorf("%+v, %v", features, err)
				}
			}
		})
	}
	go func() { all.Wait(); close(done) }()
	for {
		lab.Run(t, "", "nft", "flush", "ruleset")
		select {
		case <-done:
			return
		default:
		}
	}
}

// TestProbeFails asks for things that no kernel has; nothing must be left behind.
func TestProbeFails(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	for name, p := range map[string]probe{
		"hook":  {chains: []*nft.Chain{natChain("forward")}},
		"set":   {chains: []*nft.Chain{natChain("input", nft.Rule{nft.InSet{Key: []nft.Part{nft.Source}, Set: "nowhere"}})}},
		"order": {chains: []*nft.Chain{natChain("prerouting", nft.Rule{nft.Masquerade{}})}},
	} {
		if err := k.try(t.Context(), nft.IP, p); !isMissing(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := k.tryFlags(t.Context(), nft.IP, probe{}, 1<<31); !isMissing(err) {
		t.Errorf("table flag: %v", err)
	}
	if got := lab.Run(t, "", "nft", "list", "ruleset"); got != "" {
		t.Errorf("left behind:\n%s", got)
	}
}

func TestFeatureErrorText(t *testing.T) {
	err := &FeatureError{Family: nft.IP6, Feature: "fib lookups", Option: "CONFIG_NFT_FIB_IPV6 (module nft_fib_ipv6)",
		Err: unix.ENOENT}
	const want = "this kernel lacks fib lookups in family ip6: no such file or directory; it needs CONFIG_NFT_FIB_IPV6 " +
		"(module nft_fib_ipv6)"
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
}
