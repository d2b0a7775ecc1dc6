package nft

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestOpText holds the text of operations exactly, and runs it through nft.
func TestOpText(t *testing.T) {
	table := NewTable(IP)
	other := &Chain{Name: "other"}
	affinity := &Set{Name: "affinity-x-8080", Key: []Field{FieldAddr}, Data: []Field{FieldAddr}, Dynamic: true, Size: 65536}
	prefixes := &Set{Name: "prefixes", Key: []Field{FieldAddr}, Interval: true}
	clients := []KeyedElement{{"\x0a\x00\x00\x01", Element{Data: "\x0a\x00\x00\x02", Life: &Life{Timeout: 3 * time.Hour, Expires: time.Minute}}}}
	ranges := []KeyedElement{{Key: "\x0a\x00\x00\x00\x0a\x00\x00\xff"}, {Key: "\x0b\x00\x00\x01\x0b\x00\x00\x01"}}
	var script []string
	for _, tt := range []struct {
		op   Op
		want string
	}{
		{Op{Verb: Add, Family: IP, Table: table}, `add table ip kube-nft { comment "Kubernetes Services, written by kube-nft (schema 1)"; }`},
		{Op{Verb: Add, Family: IP, Set: &frontendSet}, "add map ip kube-nft services { type ipv4_addr . inet_proto . inet_service : verdict; }"},
		{Op{Verb: Add, Family: IP, Set: &endpointSet}, "add map ip kube-nft endpoints { typeof ip daddr . meta l4proto . th dport . numgen random mod 65536 : ip daddr . th dport; }"},
		{Op{Verb: Add, Family: IP, Set: affinity}, "add map ip kube-nft affinity-x-8080 { type ipv4_addr : ipv4_addr; size 65536; flags dynamic,timeout; }"},
		{Op{Verb: Add, Family: IP, Set: prefixes}, "add set ip kube-nft prefixes { type ipv4_addr; flags interval; }"},
		{Op{Verb: Add, Family: IP, Chain: other}, "add chain ip kube-nft other"},
		{Op{Verb: Add, Family: IP, Chain: &Chain{Name: "base", Hook: &Hook{"nat", "prerouting", -101}}},
			"add chain ip kube-nft base { type nat hook prerouting priority dstnat - 1; policy accept; }"},
		{Op{Verb: Add, Family: IP, Chain: other, Rules: []Rule{{Translated{}, Return}, {Drop}}},
			"add rule ip kube-nft other ct status dnat return\nadd rule ip kube-nft other drop"},
		{Op{Verb: Add, Family: IP, Set: &frontendSet, Elements: frontends(2, Goto("other"))},
			`add element ip kube-nft services { 10.0.0.0 . tcp . 80 comment "shop/cart-0:http" : goto other, 10.0.0.1 . tcp . 80 comment "shop/cart-1:http" : goto other }`},
		{Op{Verb: Add, Family: IP, Set: affinity, Elements: clients},
			"add element ip kube-nft affinity-x-8080 { 10.0.0.1 timeout 3h expires 1m : 10.0.0.2 }"},
		{Op{Verb: Add, Family: IP, Set: prefixes, Elements: ranges}, "add element ip kube-nft prefixes { 10.0.0.0/24, 11.0.0.1 }"},
		{Op{Verb: Delete, Family: IP, Set: prefixes, Elements: ranges}, "delete element ip kube-nft prefixes { 10.0.0.0/24, 11.0.0.1 }"},
		{Op{Verb: Delete, Family: IP, Set: &frontendSet, Elements: frontends(1, Goto("other"))}, "delete element ip kube-nft services { 10.0.0.0 . tcp . 80 }"},
		{Op{Verb: Delete, Family: IP, Set: prefixes}, "delete set ip kube-nft prefixes"},
		{Op{Verb: Flush, Family: IP, Chain: other}, "flush chain ip kube-nft other"},
		{Op{Verb: Delete, Family: IP, Chain: &Chain{Name: "base", Hook: &Hook{"nat", "prerouting", -101}}}, "delete chain ip kube-nft base"},
		{Op{Verb: Delete, Family: IP, Table: table}, "delete table ip kube-nft"},
	} {
		if got := tt.op.Text(); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
		script = append(script, tt.want)
	}
	t.Run("in kernel", func(t *testing.T) {
		lab.New(t)
		lab.Run(t, strings.Join(script, "\n")+"\n", "nft", "-f", "-")
	})
}

func TestShortText(t *testing.T) {
	op := Op{Verb: Delete, Family: IP, Set: &frontendSet, Elements: frontends(5, Drop)}
	const want = "delete element services { 10.0.0.0 . tcp . 80, 10.0.0.1 . tcp . 80, 10.0.0.2 . tcp . 80, and 2 more }"
	if diff := cmp.Diff(want, op.shortText()); diff != "" {
		t.Error(diff)
	}
}
