package tracker

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// parseServiceCIDR returns the ranges of obj and, joined, its invalid fields. It refuses a range of
// length zero: packets to unused cluster IPs are dropped, and such a range would cover every
// address of the world.
func parseServiceCIDR(obj *networkingv1.ServiceCIDR) ([]netip.Prefix, error) {
	r := invalidFields{kind: "ServiceCIDR", name: obj.Name}
	field := func(i int) string { return fmt.Sprintf("spec.cidrs[%d]", i) }
	everything := func(p netip.Prefix) bool { return p.Bits() == 0 }
	prefixes := parsePrefixes(&r, field, obj.Spec.CIDRs...)
	if slices.ContainsFunc(prefixes, everything) {
		r.add("spec.cidrs", "a CIDR of length 0 covers every address; it is ignored")
		prefixes = slices.DeleteFunc(prefixes, everything)
	}
	return prefixes, r.err()
}

// parsePrefixes reads CIDRs. It refuses invalid ones under the name that field gives.
func parsePrefixes(r *invalidFields, field func(i int) string, texts ...string) []netip.Prefix {
	var prefixes []netip.Prefix
	for i, text := range texts {
		prefix, err := parsePrefix(text)
		if err != nil {
			r.add(field(i), "%v", err)
			continue
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes
}

// parsePrefix reads a CIDR. Octets with leading zeros are decimal; bits of the host are cleared. It
// refuses an IPv4-mapped CIDR, which does not show the family of its length.
func parsePrefix(s string) (netip.Prefix, error) {
	text, length, found := strings.Cut(s, "/")
	addr, err := netip.ParseAddr(decimalOctets(text))
	bits, noLength := strconv.ParseUint(length, 10, 8) // digits only
	if !found || err != nil || noLength != nil || int(bits) > addr.BitLen() || addr.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%s is not a CIDR", quote(s))
	}
	if addr.Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%s is IPv4-mapped: write it as an IPv4 CIDR", quote(s))
	}
	return netip.PrefixFrom(addr, int(bits)).Masked(), nil
}

// mergePrefixes returns the fewest prefixes that cover the same addresses, sorted by family and
// address. It neither keeps nor changes the argument, which must be masked.
func mergePrefixes(prefixes []netip.Prefix) []netip.Prefix {
	sorted := slices.Clone(prefixes)
	slices.SortFunc(sorted, netip.Prefix.Compare)
	merged := sorted[:0]
	for _, p := range sorted {
		// In this order a prefix comes after all prefixes that contain it, and only the one merged
		// last still can contain it.
		if n := len(merged); n > 0 && merged[n-1].Overlaps(p) {
			continue
		}
		merged = join(append(merged, p))
	}
	return merged
}

// join replaces the last two prefixes by their common parent as long as they are its two halves.
func join(prefixes []netip.Prefix) []netip.Prefix {
	for n := len(prefixes); n > 1; n = len(prefixes) {
		parent, ok := parentOf(prefixes[n-2])
		other, also := parentOf(prefixes[n-1])
		if !ok || !also || parent != other {
			break
		}
		prefixes[n-2] = parent
		prefixes = prefixes[:n-1]
	}
	return prefixes
}

// parentOf returns the prefix one bit shorter; not ok for a prefix of length zero.
func parentOf(p netip.Prefix) (parent netip.Prefix, ok bool) {
	parent, err := p.Addr().Prefix(p.Bits() - 1)
	return parent, err == nil
}

// Contain reports whether one of prefixes contains addr. They are sorted, and none overlaps another one.
func Contain(prefixes []netip.Prefix, addr netip.Addr) bool {
	after, _ := slices.BinarySearchFunc(prefixes, addr, func(p netip.Prefix, addr netip.Addr) int {
		if addr.Less(p.Addr()) {
			return 1
		}
		return -1
	})
	return after > 0 && prefixes[after-1].Contains(addr)
}
