package tracker

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// parseAddr reads an address as the Kubernetes API means it: octets with leading zeros are
// decimal, and an IPv4-mapped IPv6 address is the IPv4 address. The older API servers that
// stored such forms read them so, and so do the other components of a cluster; refusing
// them would cut off a Service that works elsewhere. Scoped addresses are refused: a
// Service has no interface.
func parseAddr(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(decimalOctets(s))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s is not an IP address", quote(s))
	}
	if addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%s has a scope, which is not supported", quote(s))
	}
	return addr.Unmap(), nil
}

// parseReachable is parseAddr for addresses that packets are sent to. It refuses those that
// never leave a host or mean many hosts: translating them would seize this node's own
// loopback connections, or open its loopback to others.
func parseReachable(s string) (netip.Addr, error) {
	addr, err := parseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, err
	case addr.IsUnspecified():
		return netip.Addr{}, fmt.Errorf("%s is the unspecified address", quote(s))
	case addr.IsLoopback():
		return netip.Addr{}, fmt.Errorf("%s is a loopback address", quote(s))
	case addr.IsMulticast():
		return netip.Addr{}, fmt.Errorf("%s is a multicast address", quote(s))
	}
	return addr, nil
}

// parsePrefix reads a CIDR: leading zeros are decimal, bits of the host are cleared. An
// IPv4-mapped one is refused, as it does not say which family its length counts in.
func parsePrefix(s string) (netip.Prefix, error) {
	text, length, found := strings.Cut(s, "/")
	addr, err := netip.ParseAddr(decimalOctets(text))
	bits, ok := parseLength(length)
	if !found || err != nil || !ok || bits > addr.BitLen() || addr.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%s is not a CIDR", quote(s))
	}
	if addr.Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%s is IPv4-mapped: write it as an IPv4 CIDR", quote(s))
	}
	return netip.PrefixFrom(addr, bits).Masked(), nil
}

// parseLength reads the number of bits after the slash of a CIDR: digits only.
func parseLength(s string) (bits int, ok bool) {
	n, err := strconv.ParseUint(s, 10, 8)
	return int(n), err == nil
}

// decimalOctets strips the leading zeros from the octets of the IPv4 address that s is or
// ends with. Texts without any, nearly all, are returned as they are.
func decimalOctets(s string) string {
	start := strings.LastIndexByte(s, ':') + 1
	if start > 0 && !strings.Contains(s[start:], ".") || !hasLeadingZero(s[start:]) {
		return s
	}
	octets := strings.Split(s[start:], ".")
	for i, octet := range octets {
		if short := strings.TrimLeft(octet, "0"); short != "" {
			octets[i] = short
		} else if octet != "" {
			octets[i] = "0"
		}
	}
	return s[:start] + strings.Join(octets, ".")
}

// hasLeadingZero reports whether an octet of the dotted text s starts with a needless zero.
func hasLeadingZero(s string) bool {
	for i := 0; i+1 < len(s); i++ {
		if s[i] == '0' && (i == 0 || s[i-1] == '.') && s[i+1] != '.' {
			return true
		}
	}
	return false
}

// ofFamily returns those of addrs that belong to family, nil if there are none.
func ofFamily(addrs []netip.Addr, family Family) []netip.Addr {
	var own []netip.Addr
	for _, addr := range addrs {
		if FamilyOf(addr) == family {
			own = append(own, addr)
		}
	}
	return own
}
