package entries

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/nft"
)

// TestWrong: what is as it should be is left alone.
func TestWrong(t *testing.T) {
	for _, f := range nft.Families {
		client, a, b, stranger := testAddr(f, 1), testAddr(f, 2), testAddr(f, 3), testAddr(f, 4)
		groups := map[uint32]Group{
			16: {Family: f, Number: 16, Members: []netip.Addr{a, b}, Timeout: time.Hour},
			17: {Family: f, Number: 17, Members: []netip.Addr{a}, Timeout: time.Hour},
		}
		entry := func(ep netip.Addr, timeout, expires time.Duration) nft.Element {
			return nft.Element{Data: nft.AddrKey(ep), Life: &nft.Life{Timeout: timeout, Expires: expires}}
		}
		type change struct {
			Number   uint32
			Gone     bool
			Endpoint netip.Addr
			Expires  time.Duration
		}
		for _, tt := range []struct {
			name     string
			number   uint32
			entry    nft.Element
			takeOver map[uint32]uint32
			known    bool // to the number that takes over
			want     []change
		}{
			{"a member", 16, entry(a, time.Hour, time.Minute), nil, false, nil},
			{"no member", 16, entry(stranger, time.Hour, time.Minute), nil, false, []change{{Number: 16, Gone: true}}},
			{"a number that nobody has", 99, entry(a, time.Hour, time.Minute), nil, false, []change{{Number: 99, Gone: true}}},
			{"a longer timeout", 16, entry(a, 3*time.Hour, 2*time.Hour), nil, false, []change{{16, true, a, time.Hour}}},
			{"a shorter timeout", 16, entry(a, time.Minute, time.Second), nil, false, []change{{16, true, a, time.Second}}},
			{"taken over", 16, entry(a, time.Hour, time.Minute), map[uint32]uint32{16: 17}, false, []change{{17, false, a, time.Minute}}},
			{"no member where it is taken over", 16, entry(b, time.Hour, time.Minute), map[uint32]uint32{16: 17}, false, nil},
			{"the client is known there", 16, entry(a, time.Hour, time.Minute), map[uint32]uint32{16: 17}, true, nil},
		} {
			held := map[string]nft.Element{nft.NumberedKey(f, tt.number, client): tt.entry}
			if tt.known {
				held[nft.NumberedKey(f, 17, client)] = entry(a, time.Hour, time.Hour)
			}
			var got []change
			for _, c := range Wrong(f, held, func(n uint32) Group { return groups[n] }, tt.takeOver) {
				number, _, _ := nft.SplitNumberedKey(f, c.Key)
				change := change{Number: number, Gone: c.Before != nil}
				if c.Now != nil {
					change.Endpoint, _ = netip.AddrFromSlice([]byte(c.Now.Data))
					change.Expires = c.Now.Life.Expires
				}
				got = append(got, change)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s: %s: changes %+v, want %+v", f, tt.name, got, tt.want)
			}
		}
	}
}

func testAddr(f nft.Family, last byte) netip.Addr {
	if f == nft.IP6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 15: last})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, last})
}

// TestSurplus fills a map: those who have most give way, and only when it is nearly full.
func TestSurplus(t *testing.T) {
	for _, tt := range []struct {
		name string
		held map[uint32]int
		want map[uint32]int // that go, with a size of 100
	}{
		{"room", map[uint32]int{2: 70, 4: 5}, nil},
		{"nobody else", map[uint32]int{2: 100}, nil},
		{"one has nearly all", map[uint32]int{2: 90, 4: 10}, map[uint32]int{2: 50}},
		{"two share", map[uint32]int{2: 50, 4: 46, 6: 4}, map[uint32]int{2: 27, 4: 23}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			held := make(map[string]nft.Element)
			for number, n := range tt.held {
				for i := range n {
					held[nft.NumberedKey(nft.IP, number, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))] = nft.Element{
						Life: &nft.Life{Timeout: time.Hour, Expires: time.Duration(i+1) * time.Second},
					}
				}
			}
			got := make(map[uint32]int)
			for _, c := range Surplus(nft.IP, held, 100) {
				number, client, _ := nft.SplitNumberedKey(nft.IP, c.Key)
				got[number]++
				if int(client.As4()[3]) >= tt.want[number] {
					t.Errorf("%s of number %d goes before those that expire earlier", client, number)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" && len(tt.want)+len(got) > 0 {
				t.Errorf("entries that go (-want +got):\n%s", diff)
			}
		})
	}
}
