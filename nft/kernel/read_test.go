package kernel

import (
	"context"
	"errors"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
)

// TestReadForeign changes our tables behind our back. Whatever it is comes out as something
// that differs from what we would write, or does nothing.
func TestReadForeign(t *testing.T) {
	set := &nft.Set{Name: "addresses", Key: []nft.Field{nft.FieldAddr}}
	for _, tt := range []struct {
		commands string
		differs  func(*nft.Table) bool
	}{
		{"add table ip kube-nft { flags dormant; }", func(t *nft.Table) bool { return t.Comment != nft.NewTable(nft.IP).Comment }},
		{"add set ip kube-nft odd { type mark; }", odd},
		{"add set ip kube-nft odd { type ipv4_addr; timeout 1h; }", odd},
		{"add set ip kube-nft odd { type ipv4_addr; flags timeout; }", odd},
		{"add set ip kube-nft odd { type ipv4_addr; flags constant; elements = { 1.2.3.4 }; }", odd},
		{"add set ip kube-nft odd { type ipv4_addr; flags dynamic; }", odd},
		{"add set ip kube-nft odd { type ipv4_addr; limit rate 1/second; }", odd},
		{"add set ip kube-nft odd { typeof ip length; }", odd},
		{"add set ip kube-nft odd { type ipv4_addr . mark; flags interval; }", odd},
		{"add map ip kube-nft odd { type ipv4_addr : mark; }", odd},
		{"add map ip kube-nft odd { type ipv4_addr : counter; }", odd},
		{"delete set ip kube-nft addresses; add set ip kube-nft addresses { type ipv4_addr; size 7; }",
			func(t *nft.Table) bool { return !t.Sets["addresses"].Set.Equal(set) }},
		{"delete set ip kube-nft addresses; add set ip kube-nft addresses { type ipv4_addr; flags interval; }",
			func(t *nft.Table) bool { return !t.Sets["addresses"].Set.Equal(set) }},
		{"delete set ip kube-nft addresses; add set ip kube-nft addresses { type ipv4_addr; counter; }",
			func(t *nft.Table) bool { return !t.Sets["addresses"].Set.Equal(set) }},
		{"add element ip kube-nft addresses { 1.2.3.4 }", func(t *nft.Table) bool { return len(t.Sets["addresses"].Map) == 1 }},
		{"add chain ip kube-nft odd { type filter hook input priority 0; policy drop; }",
			func(t *nft.Table) bool { return t.Chains["odd"].Hook.Type == "filter (policy 0)" }},
		{"add chain ip kube-nft odd { type filter hook forward priority 3; }",
			func(t *nft.Table) bool {
				return *t.Chains["odd"].Hook == nft.Hook{Type: "filter", Point: "forward", Priority: 3}
			}},
		{"add counter ip kube-nft odd", same},
		{"add table inet kube-nft", same},
		{"add table ip other { chain c { drop; }; set s { type mark; }; }", same},
	} {
		t.Run(tt.commands, func(t *testing.T) {
			lab.New(t)
			k := openKernel(t)
			commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Table: nft.NewTable(nft.IP)}, {Verb: nft.Add, Family: nft.IP, Set: set}}})
			lab.Run(t, tt.commands, "nft", "-f", "-")
			tables, _, err := k.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !tt.differs(tables[nft.IP]) {
				t.Errorf("not told from ours:\n%s", tables.Text())
			}
			if len(tables) != 1 {
				t.Errorf("%d tables, want one", len(tables))
			}
		})
	}
}

// odd reports whether the set "odd" is there and of no kind that Set describes.
func odd(t *nft.Table) bool { return len(t.Sets) == 2 && len(t.Sets["odd"].Set.Key) == 0 }

// same reports whether nothing was read but what we wrote.
func same(t *nft.Table) bool {
	return len(t.Sets) == 1 && len(t.Chains) == 0 && len(t.Sets["addresses"].Set.Key) == 1
}

func TestReadCancelled(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := k.Read(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Read: %v", err)
	}
	if err := k.Commit(ctx, frontendBatch(1, nft.Drop)); !errors.Is(err, context.Canceled) {
		t.Errorf("Commit: %v", err)
	}
	if _, err := k.Elements(ctx, nft.IP, &frontendSet); !errors.Is(err, context.Canceled) {
		t.Errorf("Elements: %v", err)
	}
	checkRead(t, k, nft.Tables{})
}

func TestElementsOfMissingSet(t *testing.T) {
	lab.New(t)
	_, err := openKernel(t).Elements(t.Context(), nft.IP, &frontendSet)
	const want = "read map ip kube-nft services: no such file or directory"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
