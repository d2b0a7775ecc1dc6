package tracker

import (
	"net/netip"
	"slices"
)

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

// covers reports whether the merged prefixes of one family contain all its addresses.
func covers(merged []netip.Prefix) bool {
	return len(merged) == 1 && merged[0].Bits() == 0
}
