package kernel

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// TestHashInKernel sends packets from many addresses and ports, and compares the slots that the
// kernel finds with those of a trace.
func TestHashInKernel(t *testing.T) {
	lab.New(t)
	client := lab.Open(t, Open)
	frontends := map[nft.Family]netip.Addr{nft.IP: netip.MustParseAddr("10.96.0.1"),
		nft.IP6: netip.MustParseAddr("fd96::1")}
	networks := map[nft.Family]string{nft.IP: "10.244.0.0/16", nft.IP6: "fd24::/64"}
	for _, f := range nft.Families { // the namespace owns the clients' networks
		for _, args := range [][]string{
			{"-" + f.String()[3:], "route", "add", "local", networks[f], "dev", "lo"},
			{"-" + f.String()[3:], "route", "add", "local", frontends[f].String(), "dev", "lo"},
		} {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				lab.SkipOrFail(t, "ip %v: %v: %s", args, err, out)
			}
		}
	}
	lab.Sysctl(t, "net.ipv6.ip_nonlocal_bind", "1") // of IPv6, a local route alone is not enough
	const slots = 1009
	random := rand.New(rand.NewPCG(1, 2))
	for _, f := range nft.Families {
		for _, ports := range []bool{true, false} {
			table := nft.NewTable(f)
			held := &nft.Elements{Set: &nft.Set{Name: "endpoints",
				Key:  []nft.Field{nft.FieldAddr, nft.FieldProtocol, nft.FieldPort, nft.FieldIndex},
				Data: []nft.Field{nft.FieldAddr, nft.FieldPort}, Counters: true}, Map: make(map[string]nft.Element)}
			prefix := string(nft.AppendPort(nft.AppendProtocol(nft.AppendAddr(nil, frontends[f]), unix.IPPROTO_UDP), 53))
			for i := range slots {
				held.Map[nft.IndexedKey(prefix, i)] = nft.Element{Data: nfttest.AddrPortData(netip.AddrPortFrom(frontends[f], 9))}
			}
			table.Sets["endpoints"] = held
			key := []nft.Part{nft.Destination, nft.Protocol, nft.Port, nft.HashedIndex(slots, ports)}
			table.Chains["nat-output"] = &nft.Chain{Name: "nat-output",
				Hook:  &nft.Hook{Type: "nat", Point: "output", Priority: -101},
				Rules: []nft.Rule{{nft.DNATFrom{Key: key, Map: "endpoints", Protocol: unix.IPPROTO_UDP}}}}
			batch := change.Diff(nil, nft.Tables{f: table})
			if err := client.Commit(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			want := make(map[string]uint64)
			for range 300 {
				source := randomIn(random, netip.MustParsePrefix(networks[f]))
				conn, err := net.DialUDP("udp", &net.UDPAddr{IP: source.AsSlice()},
					&net.UDPAddr{IP: frontends[f].AsSlice(), Port: 53})
				if err != nil {
					t.Fatal(err)
				}
				port := conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
				if _, err := conn.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				conn.Close()
				result := table.Trace(nft.Packet{Source: source, Destination: frontends[f], Protocol: unix.IPPROTO_UDP, Port: 53,
					SourcePort: port, SourceLocal: true})
				if len(result.Endpoints) != 1 || result.Steps[0].Key == "" {
					t.Fatalf("the trace of %s port %d: %+v", source, port, result)
				}
				want[result.Steps[0].Key]++
			}
			counted, err := client.Counted(t.Context(), f, func(set string) bool { return set == "endpoints" })
			if err != nil {
				t.Fatal(err)
			}
			for key := range held.Map {
				if got := counted["endpoints"].Packets[key]; got != want[key] {
					t.Errorf("%s, ports %t: slot %s has %d packets, want %d", f, ports, held.ElementText(f, key), got, want[key])
				}
			}
			gone := change.Diff(nft.Tables{f: table}, nil)
			if err := client.Commit(t.Context(), gone); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// randomIn is an address of a network.
func randomIn(random *rand.Rand, p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits() / 8; i < len(b); i++ {
		b[i] = byte(1 + random.IntN(254))
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
