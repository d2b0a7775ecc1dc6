package layout

import (
	"testing"

	"github.com/kube-nft/kube-nft/nft"
)

func FuzzPolicyOf(f *testing.F) {
	f.Add("source-ranges-17-node-port-local-3-1")
	f.Add("source-ranges-node-port-17-node-port-fallback-3")
	f.Add("external-fallback-affinity-17")
	f.Add("external-local-affinity-17-none")
	f.Add("source-ranges-17-pass-on")
	f.Add("router-local-3-0")
	f.Add("source-ranges-1-router-local-list-17-none")
	f.Add("cluster-maglev-503")
	f.Add("reset-not-local")
	f.Add("source-ranges-17-node-port-reset-local-3-0")
	f.Add("external-reset-local-affinity-17-none")
	f.Add("source-ranges-17-external-local-maglev-ip-1009-503")
	f.Fuzz(func(t *testing.T, chain string) {
		verdict := nft.Goto(chain)
		if p, ok := PolicyOf(verdict); ok && *p.Verdict() != verdict {
			t.Errorf("%q is read as the policy of %q", verdict, p.Verdict())
		}
	})
}
