package kernel

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// newRuleset is what n Services of two endpoints each take.
func newRuleset(n int) *services.Ruleset {
	r := services.NewRuleset(services.Config{
		Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 1024,
		Pods: map[nft.Family]layout.PodMatch{
			nft.IP:  {CIDR: netip.MustParsePrefix("10.244.0.0/16")},
			nft.IP6: {CIDR: netip.MustParsePrefix("fdf4::/16")},
		},
	})
	delta := tracker.Delta{}
	for i := range byte(n) {
		p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{
			ID: tracker.PortID{Namespace: "ns", Service: fmt.Sprintf("service-%d", i), Port: "http",
				Protocol: tracker.TCP, Family: tracker.IPv4},
			ClusterIP: netip.AddrFrom4([4]byte{10, 96, 0, i}), Port: 80,
		},
			Lists: new(tracker.Lists), HasEndpoints: true,
		}
		for e := range byte(2) {
			p.Cluster = append(p.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128, i, e}), 8080))
		}
		p.Serving = p.Cluster
		delta.Changed = append(delta.Changed, p)
	}
	r.Apply(delta)
	return r
}

func TestAudit(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	r := newRuleset(10)
	commit(t, k, change.Diff(nft.Tables{}, r.Want()))
	want := r.Want()[nft.IP]
	counts, err := k.readSets(t.Context(), nft.NewTable(nft.IP))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		difference string
		damage     []nft.Op
	}{
		{"", nil},
		{"table ip kube-nft: set endpoints-tcp has 19 elements instead of 20", []nft.Op{
			{Verb: nft.Delete, Set: want.Sets["endpoints-tcp"].Set, Elements: anyElements(want.Sets["endpoints-tcp"], 1)}}},
		{"table ip kube-nft: set cluster-ips has 8 elements instead of 10", []nft.Op{
			{Verb: nft.Delete, Set: want.Sets["cluster-ips"].Set, Elements: anyElements(want.Sets["cluster-ips"], 2)}}},
		{fmt.Sprintf("table ip kube-nft has %d sets instead of %d", 1+len(want.Sets), len(want.Sets)),
			[]nft.Op{{Verb: nft.Add, Set: &nft.Set{Name: "foreign", Key: []nft.Field{nft.FieldAddr}}}}},
		{"table ip kube-nft: no chain nat-output", []nft.Op{
			{Verb: nft.Add, Chain: &nft.Chain{Name: "foreign"}},
			{Verb: nft.Flush, Chain: want.Chains["nat-output"]}, {Verb: nft.Delete, Chain: want.Chains["nat-output"]}}},
		{"table ip kube-nft: no set hairpin of the right kind", []nft.Op{
			{Verb: nft.Flush, Chain: want.Chains["nat-postrouting"]}, {Verb: nft.Delete, Set: want.Sets["hairpin"].Set},
			{Verb: nft.Add, Set: &nft.Set{Name: "hairpin", Key: []nft.Field{nft.FieldAddr}}}}},
		{"table ip kube-nft does not exist", []nft.Op{{Verb: nft.Delete, Table: want}}},
	} {
		b := nft.Batch{Ops: tt.damage}
		for i := range b.Ops {
			b.Ops[i].Family = nft.IP
		}
		commit(t, k, b)
		if len(counts) == 0 && strings.Contains(tt.difference, " elements instead of ") { // before Linux 6.16
			tt.difference = ""
		}
		difference, err := k.Audit(t.Context(), r.Want())
		if err != nil || difference != tt.difference {
			t.Errorf("got %q, %v; want %q", difference, err, tt.difference)
		}
		have, _, err := k.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		commit(t, k, change.Diff(have, r.Want()))
	}
}

func anyElements(held *nft.Elements, n int) (list []nft.KeyedElement) {
	for key, element := range held.Map {
		if len(list) < n {
			list = append(list, nft.KeyedElement{Key: key, Element: element})
		}
	}
	return list
}
