package nft

import (
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
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
			config := testConfig()
			set := config.affinityMap("affinity-test-8080")
			entry := func(client, endpoint byte) KeyedElement {
				return KeyedElement{string([]byte{10, 0, 0, client}), Element{Data: string([]byte{10, 244, 0, endpoint}), Life: &Life{Timeout: time.Hour}}}
			}
			commit(t, k, Batch{Ops: []Op{
				{Verb: Add, Family: IP, Table: NewTable(IP)},
				{Verb: Add, Family: IP, Set: set},
				{Verb: Add, Family: IP, Set: set, Elements: []KeyedElement{entry(1, 1), entry(2, 2)}},
			}})
			commit(t, k, Batch{Ops: []Op{{Verb: Destroy, Family: IP, Set: set, Elements: []KeyedElement{entry(1, 1), entry(3, 3)}}}})
			left, err := k.Elements(t.Context(), IP, set)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := left[entry(2, 2).Key]; !ok || len(left) != 1 {
				t.Errorf("left are %v, want the entry of client 2 alone", left)
			}
		})
	}
}
