package tracker

// This file reads the fields of API objects: names, protocols, ports, families, addresses.

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	maxLabel     = 63  // RFC 1123, section 2.1: one label of a host name
	maxSubdomain = 253 // RFC 1123, section 2.1: labels and dots together
)

// checkNames refuses an object with an impossible name or namespace, and reports whether both are
// possible. The name is a label or, with subdomain, a subdomain.
func (r *invalidFields) checkNames(subdomain bool) (ok bool) {
	namespace, name := nameFault(r.namespace, false), nameFault(r.name, subdomain)
	if namespace != "" {
		r.add("metadata.namespace", "%s; the object is ignored", namespace)
	}
	if name != "" {
		r.add("metadata.name", "%s; the object is ignored", name)
	}
	return namespace == "" && name == ""
}

// nameFault says what keeps s from being a DNS label in the sense of RFC 1123, or a subdomain;
// empty if nothing does. Labels are the form of namespaces, Services and port names; subdomains, in
// which dots may occur, are the form of other names.
func nameFault(s string, subdomain bool) string {
	most, kind := maxLabel, "label: use a-z, 0-9 and, inside, '-'"
	if subdomain {
		most, kind = maxSubdomain, "subdomain: use a-z, 0-9 and, inside, '-' and '.'"
	}
	switch {
	case s == "":
		return "is empty"
	case len(s) > most:
		return fmt.Sprintf("%s has %d bytes, at most %d are allowed", quote(s), len(s), most)
	}
	before := byte('.') // the previous byte; each label begins and ends with a letter or digit
	for i := range len(s) + 1 {
		c := byte('.')
		if i < len(s) {
			c = s[i]
		}
		switch {
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
		case c == '-' && before != '.':
		case c == '.' && before != '.' && before != '-' && (i == len(s) || subdomain):
		default:
			return fmt.Sprintf("%s is no DNS %s", quote(s), kind)
		}
		before = c
	}
	return ""
}

// protocolOf returns the Protocol with this API name; the API's default is TCP.
func protocolOf(name corev1.Protocol) (_ Protocol, ok bool) {
	switch name {
	case corev1.ProtocolTCP, "":
		return TCP, true
	case corev1.ProtocolUDP:
		return UDP, true
	case corev1.ProtocolSCTP:
		return SCTP, true
	}
	return 0, false
}

// portNumber returns n as a port number; 0 and not ok if it is none.
func portNumber(n int32) (number uint16, ok bool) {
	if n < 0 || n > 65535 {
		return 0, false
	}
	return uint16(n), true
}

// familyOf returns the Family with this API name.
func familyOf(name corev1.IPFamily) (_ Family, ok bool) {
	switch name {
	case corev1.IPv4Protocol:
		return IPv4, true
	case corev1.IPv6Protocol:
		return IPv6, true
	}
	return 0, false
}

// parseAddr reads an address as the Kubernetes API means it: octets with leading zeros are decimal,
// and an IPv4-mapped IPv6 address is the IPv4 address. Older API servers stored such forms and read
// them so, as do the other components of a cluster. Refusing them would cut off a Service that
// works elsewhere. Scoped addresses are refused: a Service has no interface.
func parseAddr(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		addr, err = netip.ParseAddr(decimalOctets(s))
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s is not an IP address", quote(s))
	}
	if addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%s has a scope, which is not supported", quote(s))
	}
	return addr.Unmap(), nil
}

// parseReachable is parseAddr for destinations of packets. It refuses addresses that never leave a
// host or mean many hosts: translating them would seize this node's own loopback connections, or
// open its loopback to others.
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

// decimalOctets strips leading zeros from the octets of the IPv4 address that s is or ends with.
func decimalOctets(s string) string {
	start := strings.LastIndexByte(s, ':') + 1
	if start > 0 && !strings.Contains(s[start:], ".") {
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

// OfFamily returns the addresses of addrs that belong to family, nil if there are none.
func OfFamily(addrs []netip.Addr, family Family) []netip.Addr {
	var own []netip.Addr
	for _, addr := range addrs {
		if FamilyOf(addr) == family {
			own = append(own, addr)
		}
	}
	return own
}

// distinct sorts addrs and removes duplicates.
func distinct(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
