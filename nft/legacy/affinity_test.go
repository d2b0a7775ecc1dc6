package legacy

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestAffinityInKernel reads the clients of every mode that this kernel has.
func TestAffinityInKernel(t *testing.T) {
	for _, f := range nft.Families {
		for _, b := range []Backend{Xtables, Compat, ProxyTables} {
			t.Run(string(b)+"/"+f.String(), func(t *testing.T) {
				n, s := newNode(t), shape(f)
				client := map[nft.Family]string{nft.IP: "192.0.2.", nft.IP6: "2001:db8::"}[f]
				enter := func(i, j int, client string) {
					if b == ProxyTables {
						lab.Run(t, fmt.Sprintf("add element %s kube-proxy %s { %s timeout 3h expires 2h }\n", f.NFT(), s.ClientSet(i, j),
							client), "nft", "-f", "-")
					} else if err := os.WriteFile("/proc/thread-self/net/xt_recent/"+s.ClientList(i, j), []byte("+"+client),
						0o644); err != nil {
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
					want = append(want, fmt.Sprintf("%s %s%d %s", tracker.Frontend{Address: s.ClusterIP(i), Protocol: tracker.TCP,
						Port: 80},
						client, k+1, netip.AddrPortFrom(s.Endpoint(i, k%3), 8080)))
				}
				inv := take(t, n)
				entries, err := inv.Affinity(t.Context())
				if err != nil {
					t.Error(err)
				}
				var got []string
				for _, e := range entries {
					got = append(got, fmt.Sprintf("%s %s %s", e.Frontend, e.Client, e.Endpoint))
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

// TestAffinityUnreadable: the error names a list that cannot be read, and the entries of others are
// returned.
func TestAffinityUnreadable(t *testing.T) {
	newNode(t)
	entry := AffinityEntry{Client: netip.MustParseAddr("192.0.2.1"), Endpoint: netip.MustParseAddrPort("10.244.0.1:8080")}
	inv := Inventory{Parts: []Part{
		{Backend: Xtables, ClientLists: []ClientList{{Name: "KUBE-SEP-AAAAAAAAAAAAAAAA"},
			{Name: "KUBE-SEP-BBBBBBBBBBBBBBBB"}}},
		{Backend: ProxyTables, Entries: []AffinityEntry{entry}},
	}}
	entries, err := inv.Affinity(t.Context())
	if !slices.Equal(entries, []AffinityEntry{entry}) {
		t.Errorf("entries %v", entries)
	}
	want := "cannot read lists of clients of kube-proxy's iptables mode: " +
		"open /proc/thread-self/net/xt_recent/KUBE-SEP-AAAAAAAAAAAAAAAA: no such file or directory"
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant: %s", err, want)
	}
}

// TestReadClientList reads what the kernel shows of lists. A client in two lists of a Service port keeps
// the endpoint at which it was seen last.
func TestReadClientList(t *testing.T) {
	reader := clientReader{found: make(map[clientOf]lastSeen)}
	lists := []string{
		"src=192.0.2.1 ttl: 64 last_seen: 50 oldest_pkt: 1 50\n" +
			"src=192.0.2.2 ttl: 64 last_seen: 60 oldest_pkt: 2 40, 60\n" +
			"src=2001:0db8:0000:0000:0000:0000:0000:0001 ttl: 64 last_seen: 60 oldest_pkt: 1\n" + // of the other family
			"src=x ttl: 64 last_seen: 17 oldest_pkt: 1\nsrc=192.0.2.5\n\n",
		"src=192.0.2.1 ttl: 64 last_seen: 51 oldest_pkt: 1\n" +
			"src=192.0.2.2 ttl: 64 last_seen: 59 oldest_pkt: 1\n" +
			"src=192.0.2.3 ttl: 64 last_seen: 0 oldest_pkt: 1\n",
	}
	for i, text := range lists {
		endpoint := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}), 8080)
		if err := reader.read(strings.NewReader(text), &ClientList{Endpoint: endpoint}); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, e := range reader.entries {
		got = append(got, fmt.Sprintf("%s %v", e.Client, e.Endpoint))
	}
	if want := []string{"192.0.2.1 10.244.0.2:8080", "192.0.2.2 10.244.0.1:8080",
		"192.0.2.3 10.244.0.2:8080"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// FuzzAffinity feeds bytes to the parsers of lists and rules: none panics, and each entry has addresses
// of one family.
func FuzzAffinity(f *testing.F) {
	f.Add("src=192.0.2.1 ttl: 64 last_seen: 4295092139 oldest_pkt: 1 4295092139\n")
	f.Fuzz(func(t *testing.T, text string) {
		reader := clientReader{found: make(map[clientOf]lastSeen)}
		_ = reader.read(strings.NewReader(text), &ClientList{Endpoint: netip.MustParseAddrPort("10.244.0.1:8080")})
		for _, e := range reader.entries {
			if !e.valid() {
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
