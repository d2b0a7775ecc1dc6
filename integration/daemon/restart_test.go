package daemon

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// strangersRuleset is what other programs have in nf_tables: some of it looks like ours.
const strangersRuleset = `
table ip kube-nft-2 {
	comment "Kubernetes Services, written by kube-nft (schema 1)"
	map services { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.1 . tcp . 80 : drop }; }
}
table inet kube-nft { chain services { type filter hook forward priority filter; ct state new counter; }; }
table ip nat { chain POSTROUTING { type nat hook postrouting priority srcnat; ip saddr 172.16.0.0/12 masquerade; }; }
`

// strangers lists the tables of strangersRuleset.
func strangers(t testing.TB) (text string) {
	t.Helper()
	for _, table := range []string{"ip kube-nft-2", "inet kube-nft", "ip nat"} {
		text += lab.Run(t, "", append([]string{"nft", "list", "table"}, strings.Fields(table)...)...)
	}
	return text
}

// TestRestartInKernel ends kube-nft and starts it again: when nothing changed meanwhile it
// writes nothing, otherwise what changed. That it is there again shows a Service which
// appears after the start; the kernel must hear of nothing but this Service.
func TestRestartInKernel(t *testing.T) {
	lab.New(t)
	lab.Run(t, strangersRuleset, "nft", "-f", "-")
	before := strangers(t)
	heard := lab.ListenToNotices(t)
	objects := lab.NewDirectory(t)
	objects.Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods, 3)))
	p := objects.Start(t)
	heard.Next(t, lab.About("shop/web:http"))
	appears := map[string]int{
		"add element ip services": 1, "add element ip endpoints-tcp": 3, "add element ip cluster-ips": 1,
	}
	for i, tt := range []struct {
		name   string
		change func() // while kube-nft is away
		want   map[string]int
	}{
		{"nothing changed", func() {}, appears},
		{"endpoints were replaced", func() {
			objects.Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods.Next(), 3)))
		}, map[string]int{"add element ip services": 1, "add element ip endpoints-tcp": 4, "add element ip cluster-ips": 1,
			"delete element ip endpoints-tcp": 1}},
		{"an element was deleted", func() {
			lab.Run(t, "", "nft", "delete", "element", "ip", "kube-nft", "cluster-ips", "{", firstWeb.String(), "}")
			heard.Next(t, lab.Any)
		}, map[string]int{"add element ip services": 1, "add element ip endpoints-tcp": 3, "add element ip cluster-ips": 2}},
	} {
		p.Stop(t)
		tt.change()
		p = objects.Start(t)
		name := fmt.Sprintf("more-%d", i)
		objects.Write(t, name+".yaml", lab.Web(name, netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}), lab.Addresses(webPods, 3)))
		if diff := cmp.Diff(tt.want, lab.Summary(heard.Next(t, lab.About("shop/"+name+":http")))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	if after := strangers(t); after != before {
		t.Errorf("tables of others (-before +after):\n%s", cmp.Diff(before, after))
	}
}
