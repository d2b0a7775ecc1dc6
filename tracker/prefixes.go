package tracker

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// parseServiceCIDR returns the ranges that obj lists and, joined, what of it is refused. A
// range of length zero is refused: unused cluster IPs are dropped, and it would make every
// address of the world one.
func parseServiceCIDR(obj *networkingv1.ServiceCIDR) ([]netip.Prefix, error) {
	r := refusals{kind: "ServiceCIDR", name: obj.Name}
	field := func(i int) string { return fmt.Sprintf("spec.cidrs[%d]", i) }
	everything := func(p netip.Prefix) bool { return p.Bits() == 0 }
	prefixes := parsePrefixes(&r, field, obj.Spec.CIDRs...)
	if slices.ContainsFunc(prefixes, everything) {
		r.add("spec.cidrs", "a CIDR of length 0 covers every address; it is ignored")
		prefixes = slices.DeleteFunc(prefixes, everything)
	}
	return prefixes, r.err()
}

// parsePrefixes reads CIDRs, refusing those that are none under the name field gives them.
func parsePrefixes(r *refusals, field func(i int) string, texts ...string) []netip.Prefix {
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

// parsePrefix reads a CIDR: leading zeros are decimal, bits of the host are cleared. An
// IPv4-mapped one is refused, as it does not say which family its length counts in.
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

// mergePrefixes returns the fewest prefixes that cover what prefixes cover, sorted by
// family and address. The argument, which must be masked, is neither kept nor changed.
func mergePrefixes(prefixes []netip.Prefix) []netip.Prefix {
	sorted := slices.Clone(prefixes)
	slices.SortFunc(sorted, netip.Prefix.Compare)
	merged := sorted[:0]
	for _, p := range sorted {
		// Sorted, a prefix comes after all that contain it, and what was merged last is the
		// only one that still can.
		if n := len(merged); n > 0 && merged[n-1].Overlaps(p) {
			continue
		}
		merged = join(append(merged, p))
	}
	return merged
}

// join replaces the last two prefixes by their common parent for as long as they are the
// two halves of one.
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

// contains reports whether one of prefixes contains addr.
func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
