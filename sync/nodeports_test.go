package sync

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/tracker"
)

func addrs(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func TestNodePortAddresses(t *testing.T) {
	node := addrs("192.168.0.2", "fd00::2")
	local := addrs("127.0.0.1", "192.168.0.2", "192.168.1.2", "10.0.0.7", "::1", "fd00::2", "fd01::2")
	for _, tt := range []struct {
		name     string
		entries  []string
		selected []netip.Addr
		all      []tracker.Family
	}{
		{"nothing given", nil, addrs("192.168.0.2", "fd00::2"), nil},
		{"primary", []string{"primary"}, addrs("192.168.0.2", "fd00::2"), nil},
		{"all", []string{"all"}, nil, []tracker.Family{tracker.IPv4, tracker.IPv6}},
		{"a range of each family", []string{"192.168.0.0/16", "fd01::/16"}, addrs("192.168.0.2", "192.168.1.2", "fd01::2"),
			nil},
		{"a range of one family", []string{"192.168.1.0/24"}, addrs("192.168.1.2"), []tracker.Family{tracker.IPv6}},
		{"overlapping and repeated", []string{"192.168.0.0/16", "192.168.1.0/24", "192.168.0.0/16", "fd01::/16"},
			addrs("192.168.0.2", "192.168.1.2", "fd01::2"), nil},
		{"zero length", []string{"0.0.0.0/0", "fd01::/16"}, addrs("fd01::2"), []tracker.Family{tracker.IPv4}},
		{"matches nothing", []string{"172.16.0.0/12", "fd09::/16"}, nil, nil},
		{"loopback is left out", []string{"127.0.0.0/8", "fd01::/16"}, addrs("fd01::2"), nil},
		{"localhost alone", []string{"localhost"}, nil, nil},
		{"localhost and primary", []string{"localhost", "primary"}, addrs("192.168.0.2", "fd00::2"), nil},
		{"primary and a range", []string{"primary", "10.0.0.0/8"}, addrs("10.0.0.7", "192.168.0.2", "fd00::2"), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err := ParseNodePortAddresses(tt.entries)
			if err != nil {
				t.Fatal(err)
			}
			if got := a.Select(node, local); !slices.Equal(got, tt.selected) {
				t.Errorf("selected %v, want %v", got, tt.selected)
			}
			for _, family := range tracker.Families {
				if got, want := a.All(family), slices.Contains(tt.all, family); got != want {
					t.Errorf("all of %s: %v, want %v", family, got, want)
				}
			}
		})
	}
}

func TestNodePortAddressesString(t *testing.T) {
	for _, tt := range []struct {
		entries []string
		want    string
	}{
		{nil, "primary"},
		{[]string{"all"}, "all"},
		{[]string{"localhost", "10.0.0.0/8", "primary"}, "localhost,10.0.0.0/8,primary"},
	} {
		a, err := ParseNodePortAddresses(tt.entries)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.String(); got != tt.want {
			t.Errorf("%q is shown as %q, want %q", tt.entries, got, tt.want)
		}
	}
}

func TestNodePortAddressesRefused(t *testing.T) {
	_, err := ParseNodePortAddresses([]string{"192.168.0.2"})
	want := `"192.168.0.2" is neither a CIDR such as 192.168.0.0/24 nor one of the keywords primary, localhost and all`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
