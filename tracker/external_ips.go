package tracker

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ExternalIPs says which addresses Services may list in spec.externalIPs. The zero value allows all.
// It never changes.
type ExternalIPs struct {
	limited bool
	ranges  []netip.Prefix // merged
}

// Words for ParseExternalIPs.
const (
	allAddresses = "all"
	noAddress    = "none"
)

// ParseExternalIPs reads a list of CIDRs, or the single word all or none. An empty list allows all.
func ParseExternalIPs(entries []string) (ExternalIPs, error) {
	switch {
	case len(entries) == 0, slices.Equal(entries, []string{allAddresses}):
		return ExternalIPs{}, nil
	case slices.Equal(entries, []string{noAddress}):
		return ExternalIPs{limited: true}, nil
	}
	e := ExternalIPs{limited: true}
	for _, entry := range entries {
		prefix, err := parsePrefix(entry)
		if err != nil {
			return ExternalIPs{}, fmt.Errorf("%w; expected CIDRs such as 203.0.113.0/24, or a single all or none", err)
		}
		e.ranges = append(e.ranges, prefix)
	}
	e.ranges = mergePrefixes(e.ranges)
	return e, nil
}

// Allows reports whether a Service may list addr.
func (e ExternalIPs) Allows(addr netip.Addr) bool { return !e.limited || Contain(e.ranges, addr) }

// String returns all, none, or the CIDRs with commas, merged and in order.
func (e ExternalIPs) String() string {
	switch {
	case !e.limited:
		return allAddresses
	case len(e.ranges) == 0:
		return noAddress
	}
	texts := make([]string, len(e.ranges))
	for i, prefix := range e.ranges {
		texts[i] = prefix.String()
	}
	return strings.Join(texts, ",")
}
