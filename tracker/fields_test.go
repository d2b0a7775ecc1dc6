package tracker

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func TestParseAddr(t *testing.T) {
	tests := []struct{ text, want string }{
		{"10.0.0.1", "10.0.0.1"}, {"010.000.00.01", "10.0.0.1"}, {"0.0.0.0", "0.0.0.0"}, {"00.0.0.000", "0.0.0.0"},
		{"fd00::1", "fd00::1"}, {"FD00:0:0::0001", "fd00::1"},
		{"::ffff:10.0.0.1", "10.0.0.1"}, {"::ffff:010.0.0.01", "10.0.0.1"}, {"::ffff:a00:1", "10.0.0.1"},
		{"64:ff9b::010.0.0.1", "64:ff9b::a00:1"},
		{"", `"" is not an IP address`}, {"0", `"0" is not an IP address`}, {"10.0.0", `"10.0.0" is not an IP address`},
		{"10.0.0.1 ", `"10.0.0.1 " is not an IP address`}, {"10.0.0.256", `"10.0.0.256" is not an IP address`},
		{"0x0a.0.0.1", `"0x0a.0.0.1" is not an IP address`}, {"10..0.1", `"10..0.1" is not an IP address`},
		{"0.-0.0.0", `"0.-0.0.0" is not an IP address`},
		{"fe80::1%eth0", `"fe80::1%eth0" has a scope, which is not supported`},
	}
	for _, tt := range tests {
		got, err := parseAddr(tt.text)
		if text := outcome(got, err); text != tt.want {
			t.Errorf("%q: got %s, want %s", tt.text, text, tt.want)
		}
	}
}

func TestParsePrefix(t *testing.T) {
	tests := []struct{ text, want string }{
		{"10.0.0.0/8", "10.0.0.0/8"}, {"10.1.2.3/8", "10.0.0.0/8"}, {"010.0.0.0/08", "10.0.0.0/8"},
		{"0.0.0.0/0", "0.0.0.0/0"},
		{"fd00::/64", "fd00::/64"}, {"fd00::1/128", "fd00::1/128"},
		{"10.0.0.0", `"10.0.0.0" is not a CIDR`}, {"10.0.0.0/", `"10.0.0.0/" is not a CIDR`},
		{"10.0.0.0/33", `"10.0.0.0/33" is not a CIDR`},
		{"10.0.0.0/-1", `"10.0.0.0/-1" is not a CIDR`}, {"10.0.0.0/8/8", `"10.0.0.0/8/8" is not a CIDR`},
		{"/8", `"/8" is not a CIDR`},
		{"fe80::%eth0/64", `"fe80::%eth0/64" is not a CIDR`},
		{"::ffff:10.0.0.0/104", `"::ffff:10.0.0.0/104" is IPv4-mapped: write it as an IPv4 CIDR`},
	}
	for _, tt := range tests {
		got, err := parsePrefix(tt.text)
		if text := outcome(got, err); text != tt.want {
			t.Errorf("%q: got %s, want %s", tt.text, text, tt.want)
		}
	}
}

// outcome returns the text of err or, without one, of value.
func outcome(value fmt.Stringer, err error) string {
	if err != nil {
		return err.Error()
	}
	return value.String()
}

// TestMergePrefixes compares with a map of single addresses, in a world of 64 of them.
func TestMergePrefixes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		prefixes := randomPrefixes(random)
		before := slices.Clone(prefixes)
		merged := mergePrefixes(prefixes)
		if !slices.Equal(prefixes, before) {
			t.Fatalf("argument changed from %v to %v", before, prefixes)
		}
		for last := range 64 {
			for _, addr := range addrs(fmt.Sprintf("10.0.0.%d", last), fmt.Sprintf("fd00::%x", last)) {
				if Contain(merged, addr) != slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }) {
					t.Fatalf("%v merged to %v: differ about %v", prefixes, merged, addr)
				}
			}
		}
		if again := mergePrefixes(merged); !slices.Equal(again, merged) || !minimal(merged) {
			t.Fatalf("%v merged to %v, which is not minimal", prefixes, merged)
		}
	}
}

func randomPrefixes(random *rand.Rand) []netip.Prefix {
	prefixes := make([]netip.Prefix, random.IntN(12))
	for i := range prefixes {
		text := fmt.Sprintf("10.0.0.%d/%d", random.IntN(64), 26+random.IntN(7))
		if random.IntN(2) == 0 {
			text = fmt.Sprintf("fd00::%x/%d", random.IntN(64), 122+random.IntN(7))
		}
		prefixes[i] = netip.MustParsePrefix(text).Masked()
	}
	return prefixes
}

// minimal reports whether prefixes are sorted, do not overlap, and no two make one.
func minimal(prefixes []netip.Prefix) bool {
	for i, p := range prefixes {
		for _, q := range prefixes[i+1:] {
			parent, _ := parentOf(p)
			other, _ := parentOf(q)
			if p.Compare(q) >= 0 || p.Overlaps(q) || parent == other {
				return false
			}
		}
	}
	return true
}
