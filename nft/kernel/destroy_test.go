package kernel

import (
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/services"
)

// TestDestroyInKernel deletes entries of an affinity map that are there and that are not,
// with the kernel's own verb and without it.
func TestDestroyInKernel(t *testing.T) {
	for name, destroys := range map[string]bool{"native": true, "emulated": false} {
		t.Run(name, func(t *testing.T) {
			lab.New(t)
			k := openKernel(t)
			if _, err := k.Probe(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !k.destroys && destroys {
				t.Skip("this kernel does not know the verb")
			}
			k.destroys = destroys
			config := services.testConfig()
			set := config.affinityMap("affinity-test-8080")
			entry := func(client, endpoint byte) nft.KeyedElement {
				return nft.KeyedElement{Key: string([]byte{10, 0, 0, client}), Element: nft.Element{Data: string([]byte{10, 244, 0, endpoint}), Life: &nft.Life{Timeout: time.Hour}}}
			}
			commit(t, k, nft.Batch{Ops: []nft.Op{
				{Verb: nft.Add, Family: nft.IP, Table: nft.NewTable(nft.IP)},
				{Verb: nft.Add, Family: nft.IP, Set: set},
				{Verb: nft.Add, Family: nft.IP, Set: set, Elements: []nft.KeyedElement{entry(1, 1), entry(2, 2)}},
			}})
			commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Destroy, Family: nft.IP, Set: set, Elements: []nft.KeyedElement{entry(1, 1), entry(3, 3)}}}})
			left, err := k.Elements(t.Context(), nft.IP, set)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := left[entry(2, 2).Key]; !ok || len(left) != 1 {
				t.Errorf("left are %v, want the entry of client 2 alone", left)
			}
		})
	}
}
