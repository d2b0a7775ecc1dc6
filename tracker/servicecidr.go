package tracker

import (
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// parseServiceCIDR returns the ranges that obj lists and, joined, what of it is refused. A
// range of length zero is refused: unused cluster IPs are dropped, and it would make every
// address of the world one.
func parseServiceCIDR(obj *networkingv1.ServiceCIDR) ([]netip.Prefix, error) {
	r := refusals{kind: "ServiceCIDR", name: obj.Name}
	field := func(i int) string { return fmt.Sprintf("spec.cidrs[%d]", i) }
	prefixes := parsePrefixes(&r, field, obj.Spec.CIDRs...)
	if slices.ContainsFunc(prefixes, coversFamily) {
		r.add("spec.cidrs", "a CIDR of length 0 covers every address; it is ignored")
		prefixes = slices.DeleteFunc(prefixes, coversFamily)
	}
	return prefixes, r.err()
}

// coversFamily reports whether p contains all addresses of its family.
func coversFamily(p netip.Prefix) bool { return p.Bits() == 0 }
