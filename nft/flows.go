package nft

import (
	"net/netip"
	"slices"
)

// noteFlows remembers frontends whose connections may have become stale: they are new, so
// that older flows bypass them, or an endpoint that served them does not serve any more.
func (r *family) noteFlows(f Frontend, have, want *service) {
	switch {
	case have.policy.kind == 0 && want.policy.kind != 0:
	case want.policy.kind == 0:
	case have.owner == want.owner && !lost(have.serving, want.serving):
		return
	}
	r.flows[f] = true
}

// lost reports whether an endpoint of have is missing in want.
func lost(have, want []netip.AddrPort) bool {
	if len(have) > 0 && len(have) == len(want) && &have[0] == &want[0] {
		return false
	}
	return slices.ContainsFunc(have, func(ep netip.AddrPort) bool {
		_, ok := slices.BinarySearchFunc(want, ep, netip.AddrPort.Compare)
		return !ok
	})
}
