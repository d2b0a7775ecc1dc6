package legacy

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestAffinityInKernel reads the clients of every mode that this kernel has, with the time that is left.
func TestAffinityInKernel(t *testing.T) {
	for _, f := range nft.Families {
		for _, b := range []Backend{Xtables, Compat, ProxyTables} {
			t.Run(string(b)+"/"+f.String(), func(t *testing.T) {
				n, s := newNode(t), shape(f)
				client := map[nft.Family]string{nft.IP: "192.0.2.", nft.IP6: "2001:db8::"}[f]
				enter := func(i, j int, client string) {
					if b == ProxyTables {
						lab.Run(t, fmt.Sprintf("add element %s kube-proxy %s { %s timeout 3h expires 2h }\n", f.NFT(), s.ClientSet(i, j), client), "nft", "-f", "-")
					} else if err := os.WriteFile("/proc/thread-self/net/xt_recent/"+s.ClientList(i, j), []byte("+"+client), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				if b == ProxyTables {
					lab.Run(t, s.NFTables(), "nft", "-f", "-")
				} else {
					restore(t, f, b, s.IPTables())
				}
				var want []string
				for k := range 6 {
					i := 4 + 10*k
					if s.Refused(i) || !s.Affine(i) {
						t.Fatalf("Service %d has no affinity", i)
					}
					enter(i, k%3, fmt.Sprint(client, k+1))
					want = append(want, fmt.Sprintf("%s %s%d %s", tracker.Frontend{Address: s.ClusterIP(i), Protocol: tracker.TCP, Port: 80},
						client, k+1, netip.AddrPortFrom(s.Endpoint(i, k%3), 8080)))
				}
				time.Sleep(1500 * time.Millisecond) // an age that shows in what is left
				inv := take(t, n)
				entries, problems := inv.Affinity(t.Context())
				if len(problems) > 0 {
					t.Errorf("problems: %v", problems)
				}
				expected := map[bool]time.Duration{true: 2 * time.Hour, false: 3 * time.Hour}[b == ProxyTables]
				var got []string
				for _, e := range entries {
					got = append(got, fmt.Sprintf("%s %s %s", e.Frontend, e.Client, e.Endpoint))
					if e.Left > expected-time.Second || e.Left < expected-time.Minute {
						t.Errorf("%s has %v left, 1.5 s less than %v were to be expected", e.Client, e.Left, expected)
					}
				}
				slices.Sort(got)
				slices.Sort(want)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestAffinityUnreadable: what is missing is named, and nothing fails.
func TestAffinityUnreadable(t *testing.T) {
	newNode(t)
	inv := Inventory{Parts: []Part{
		{Backend: Xtables, ClientLists: []ClientList{{Name: "KUBE-SEP-AAAAAAAAAAAAAAAA"}, {Name: "KUBE-SEP-BBBBBBBBBBBBBBBB"}}},
		{Backend: IPVS, Servers: make([]Server, 1)},
	}}
	entries, problems := inv.Affinity(t.Context())
	if len(entries) > 0 || len(problems) != 2 {
		t.Fatalf("%v, %v", entries, problems)
	}
	for i, want := range []string{
		"session affinity of the iptables mode: 2 of 2 lists of clients could not be read: open /proc/thread-self/net/xt_recent/KUBE-SEP-AAAAAAAAAAAAAAAA: no such file or directory",
		"session affinity of the IPVS mode: open /proc/thread-self/net/ip_vs_conn: no such file or directory",
	} {
		if got := problems[i].Error(); got != want {
			t.Errorf("%s\nwant: %s", got, want)
		}
	}
}

// TestPresentTick compares the tick with the kernel's own, which only root may see.
func TestPresentTick(t *testing.T) {
	before, err := presentTick()
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile("/proc/timer_list")
	if err != nil {
		t.Skip(err)
	}
	after, err := presentTick()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		var count uint64
		if n, _ := fmt.Sscanf(line, "jiffies: %d", &count); n == 1 {
			ahead := func(worked tick) time.Duration {
				return time.Duration(int64(worked.count-count)) * time.Second / time.Duration(worked.rate)
			}
			if ahead(after) < -time.Second || ahead(before) > tickSlack {
				t.Errorf("worked out %d and then %d, the kernel says %d between: %v and %v ahead", before.count, after.count, count, ahead(before), ahead(after))
			}
			return
		}
	}
	t.Skip("the kernel does not show its ticks")
}

func TestSince(t *testing.T) {
	const rate, up = 250, 1000 * 250 // up for 1000 s
	now := tick{count: 1<<32 - 300*rate + up, rate: rate}
	for _, tt := range []struct {
		name string
		then uint64
		want time.Duration
		ok   bool
	}{
		{"now", now.count, 0, true},
		{"a minute ago", now.count - 60*rate, time.Minute, true},
		{"at the start", now.count - up, 1000 * time.Second, true},
		{"before it", now.count - up - 1, 0, false},
		{"a little later", now.count + rate, 0, true},
		{"much later", now.count + 10*rate, 0, false},
		{"zero", 0, 0, false},
		{"far", 1<<64 - 1, 0, false},
	} {
		if got, ok := now.since(tt.then); got != tt.want || ok != tt.ok {
			t.Errorf("%s: %v, %v; want %v, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
	if _, ok := (tick{}).since(17); ok {
		t.Error("without a present tick, a time was told")
	}
}

// TestParseClients reads what the kernel shows of a list.
func TestParseClients(t *testing.T) {
	now := tick{count: 1<<32 + 1_000_000, rate: 250}
	list := ClientList{Name: "KUBE-SEP-A", Endpoint: netip.MustParseAddrPort("10.244.0.1:8080"), Timeout: time.Hour}
	text := fmt.Sprintf("src=192.0.2.1 ttl: 64 last_seen: %d oldest_pkt: 1 %d\n", now.count-250*60, now.count-250*60) +
		fmt.Sprintf("src=192.0.2.2 ttl: 64 last_seen: %d oldest_pkt: 2 %d, %d\n", now.count, now.count-9, now.count) +
		fmt.Sprintf("src=192.0.2.3 ttl: 64 last_seen: %d oldest_pkt: 1\n", now.count-250*3600) + // expired
		"src=192.0.2.4 ttl: 64 last_seen: 17 oldest_pkt: 1\n" + // at no time
		fmt.Sprintf("src=2001:0db8:0000:0000:0000:0000:0000:0001 ttl: 64 last_seen: %d oldest_pkt: 1\n", now.count) + // of the other family
		"src=x ttl: 64 last_seen: 17 oldest_pkt: 1\nsrc=192.0.2.5\n\n"
	var all latest
	guessed, err := parseClients(strings.NewReader(text), list, now, &all)
	if guessed != 1 || err != nil {
		t.Errorf("guessed %d, %v", guessed, err)
	}
	var got []string
	for _, e := range all.entries() {
		got = append(got, fmt.Sprintf("%s %v", e.Client, e.Left))
	}
	if want := []string{"192.0.2.2 1h0m0s", "192.0.2.4 1h0m0s", "192.0.2.1 59m0s"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// templates is what IPVS shows of its connections, written after net/netfilter/ipvs/ip_vs_conn.c.
const templates = `Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C0000207 0000 0A600001 0050 0AF40001 1F90 NONE        10790
TCP C0000207 B0B2 0A600001 0050 0AF40001 1F90 ESTABLISHED   890
UDP C0000208 0000 C6336409 7563 0AF40002 0035 NONE           17
TCP C0000209 0000 0A600009 0050 0AF40001 1F90 NONE        10790
IP  C0000209 0000 00000007 0000 0AF40001 0000 NONE           60
TCP C0000209 0000 0A600001 0050 fd00:0010:0244:0000:0000:0000:0000:0001 1F90 NONE 60
TCP 2001:0db8:0000:0000:0000:0000:0000:0007 0000 fd00:0010:0096:0000:0000:0000:0000:0001 0050 fd00:0010:0244:0000:0000:0000:0000:0001 1F90 NONE           60
`

// ipvsPart has the frontends of templates.
func ipvsPart() *Part {
	return &Part{Backend: IPVS, Frontends: []Frontend{
		{Frontend: tracker.Frontend{Address: netip.MustParseAddr("10.96.0.1"), Protocol: tracker.TCP, Port: 80}},
		{Frontend: tracker.Frontend{Address: netip.MustParseAddr("fd00:10:96::1"), Protocol: tracker.TCP, Port: 80}},
		{Frontend: tracker.NodePort(tracker.IPv4, tracker.UDP, 30051)},
	}}
}

// TestParseTemplates: of all connections the templates count, if their server is kube-proxy's.
func TestParseTemplates(t *testing.T) {
	var all latest
	if err := ipvsPart().parseTemplates(t.Context(), strings.NewReader(templates), &all); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all.entries() {
		got = append(got, fmt.Sprintf("%s %s %s %v", e.Frontend, e.Client, e.Endpoint, e.Left))
	}
	want := []string{
		"10.96.0.1:80/tcp 192.0.2.7 10.244.0.1:8080 2h59m50s",
		"[fd00:10:96::1]:80/tcp 2001:db8::7 [fd00:10:244::1]:8080 1m0s",
		"node port 30051/udp 192.0.2.8 10.244.0.2:53 17s",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestLatest: of too many entries those stay that expire last.
func TestLatest(t *testing.T) {
	var all latest
	ep := netip.MustParseAddrPort("10.244.0.1:8080")
	for i := range 5 * mostEntries {
		left := time.Duration(1+i*7919%(5*mostEntries)) * time.Second
		all.add(AffinityEntry{Client: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), Endpoint: ep, Left: left})
	}
	got := all.entries()
	if len(got) != mostEntries || cap(all.list) > 4*mostEntries {
		t.Fatalf("%d entries kept, room for %d", len(got), cap(all.list))
	}
	for i, e := range got {
		if want := time.Duration(5*mostEntries-i) * time.Second; e.Left != want {
			t.Fatalf("entry %d has %v left, want %v", i, e.Left, want)
		}
	}
}

// FuzzAffinity feeds text to the parsers of /proc: no panic, and nothing that no frontend or endpoint has.
func FuzzAffinity(f *testing.F) {
	f.Add(templates)
	f.Add("src=192.0.2.1 ttl: 64 last_seen: 4295092139 oldest_pkt: 1 4295092139\n")
	f.Fuzz(func(t *testing.T, text string) {
		var all latest
		list := ClientList{Endpoint: netip.MustParseAddrPort("10.244.0.1:8080"), Timeout: time.Hour}
		_, _ = parseClients(strings.NewReader(text), list, tick{count: 1<<32 + 1_000_000, rate: 250}, &all)
		_ = ipvsPart().parseTemplates(t.Context(), strings.NewReader(text), &all)
		for _, e := range all.entries() {
			if !e.Client.IsValid() || e.Left <= 0 || e.Client.Is6() != e.Endpoint.Addr().Is6() {
				t.Errorf("%+v", e)
			}
		}
		_ = recentOf([]byte(text))
		for _, family := range nft.Families {
			_ = translation(family, 0, []byte(text))
			_ = translation(family, 2, []byte(text))
		}
	})
}
