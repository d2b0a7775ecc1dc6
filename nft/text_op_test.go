package nft_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// TestOpText holds the text of operations exactly, and runs it through nft.
func TestOpText(t *testing.T) {
	table := nft.NewTable(nft.IP)
	other := &nft.Chain{Name: "other"}
	affinity := &nft.Set{Name: "affinity-x-8080", Key: []nft.Field{nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr},
		Dynamic: true, Size: 65536}
	prefixes := &nft.Set{Name: "prefixes", Key: []nft.Field{nft.FieldAddr}, Interval: true}
	clients := []nft.KeyedElement{{Key: "\x0a\x00\x00\x01",
		Element: nft.Element{Data: "\x0a\x00\x00\x02", Life: &nft.Life{Timeout: 3 * time.Hour, Expires: time.Minute}}}}
	ranges := []nft.KeyedElement{{Key: "\x0a\x00\x00\x00\x0a\x00\x00\xff"}, {Key: "\x0b\x00\x00\x01\x0b\x00\x00\x01"}}
	var script []string
	for _, tt := range []struct {
		op   nft.Op
		want string
	}{
		{nft.Op{Verb: nft.Add, Family: nft.IP, Table: table},
			`add table ip kube-nft { comment "Kubernetes Services, written by kube-nft (schema 1)"; }`},
		{nft.Op{Verb: nft.Add, Family: nft.IP, Set: &nfttest.FrontendSet},
			"add map ip kube-nft services { type ipv4_addr . inet_proto . inet_service : verdict; }"},
		{nft.Op{Verb: nft.Add, Family: nft.IP, Set: &nfttest.EndpointSet},
			"add map ip kube-nft endpoints { typeof ip daddr . meta l4proto . th dport . numgen random mod 65536 : ip daddr . " +
				"th dport; }"},
		{nft.Op{Verb: nft.Add, Family: nft.IP, Set: affinity},
			"add map ip kube-nft affinity-x-8080 { type ipv4_addr : ipv4_addr; size 65536; flags dynamic,timeout; }"},
		{nft.Op{Verb: nft.Add, Family: nft.IP, Set: prefixes},
			"add set ip kube-nft prefixes { type ipv4_addr; flags interval; }"},
		{nft.Op{Verb: nft.Add, Family: nft.IP, Chain: other}, "add chain ip kube-nft other"},
		{nft.Op{Verb: nft.Add, Family: nft.IP,
			Chain: &nft.Chain{Name: "base", Hook: &nft.Hook{Type: "nat", Point: "prerouting", Priority: -101}}},
			"add chain ip kube-nft base { type nat hook prerouting priority dstnat - 1; policy accept; }"},
		{nft.Op{Verb: nft.Add, Family: nft.IP, Chain: other, Rules: []nft.Rule{{nft.Translated{}, nft.Return}, {nft.Drop}}},
			"add rule ip kube-nft other ct status dnat return\nadd rule ip kube-nft other drop"},
		{nft.Op{Verb: nft.Add, Family: nft.IP, Set: &nfttest.FrontendSet, Elements: nfttest.Frontends(2, nft.Goto("other"))},
			`add element ip kube-nft services { 10.0.0.0 . tcp . 80 comment "shop/cart-0:http" : goto other, 10.0.0.1 . tcp . 80 comment "shop/cart-1:http" : goto other }`},
		{nft.Op{Verb: nft.Add, Family: nft.IP, Set: affinity, Elements: clients},
			"add element ip kube-nft affinity-x-8080 { 10.0.0.1 timeout 3h expires 1m : 10.0.0.2 }"},
		{nft.Op{Verb: nft.Add, Family: nft.IP, Set: prefixes, Elements: ranges},
			"add element ip kube-nft prefixes { 10.0.0.0/24, 11.0.0.1 }"},
		{nft.Op{Verb: nft.Delete, Family: nft.IP, Set: prefixes, Elements: ranges},
			"delete element ip kube-nft prefixes { 10.0.0.0/24, 11.0.0.1 }"},
		{nft.Op{Verb: nft.Delete, Family: nft.IP, Set: &nfttest.FrontendSet,
			Elements: nfttest.Frontends(1, nft.Goto("other"))}, "delete element ip kube-nft services { 10.0.0.0 . tcp . 80 }"},
		{nft.Op{Verb: nft.Delete, Family: nft.IP, Set: prefixes}, "delete set ip kube-nft prefixes"},
		{nft.Op{Verb: nft.Flush, Family: nft.IP, Chain: other}, "flush chain ip kube-nft other"},
		{
			nft.Op{Verb: nft.Delete, Family: nft.IP,
				Chain: &nft.Chain{Name: "base", Hook: &nft.Hook{Type: "nat", Point: "prerouting", Priority: -101}}},
			"delete chain ip kube-nft base",
		},
		{nft.Op{Verb: nft.Delete, Family: nft.IP, Table: table}, "delete table ip kube-nft"},
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
	op := nft.Op{Verb: nft.Delete, Family: nft.IP, Set: &nfttest.FrontendSet, Elements: nfttest.Frontends(5, nft.Drop)}
	const want = "delete element services { 10.0.0.0 . tcp . 80, 10.0.0.1 . tcp . 80, 10.0.0.2 . tcp . 80, and 2 more }"
	if diff := cmp.Diff(want, op.ShortText()); diff != "" {
		t.Error(diff)
	}
}
