package attr

import (
	"fmt"
	"net/netip"
)

// Family is an IP family by the number that netfilter has for it: NFPROTO_IPV4 and
// NFPROTO_IPV6 in linux/netfilter.h.
type Family uint8

// The IP families; the zero value is neither.
const (
	IPv4 Family = 2
	IPv6 Family = 10
)

// Families lists both families in the order in which everything is printed, and in which
// the kernel lists their tables.
var Families = [...]Family{IPv4, IPv6}

// Of returns the family of addr. An IPv4-mapped IPv6 address counts as IPv6; the zero
// address has no family.
func Of(addr netip.Addr) Family {
	switch {
	case addr.Is4():
		return IPv4
	case addr.Is6():
		return IPv6
	}
	return 0
}

// String returns the family as the Kubernetes API spells it: IPv4 or IPv6.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return fmt.Sprintf("Family(%d)", uint8(f))
}

// nftNames are the families of tables as nft spells them: NFPROTO_* in linux/netfilter.h. Our tables have IPv4 or IPv6.
var nftNames = map[Family]string{1: "inet", IPv4: "ip", 3: "arp", 5: "netdev", 7: "bridge", IPv6: "ip6"}

// NFT returns the family as nft spells it: ip or ip6, or for a table of another program one more.
func (f Family) NFT() string {
	if name, known := nftNames[f]; known {
		return name
	}
	return fmt.Sprintf("family-%d", uint8(f))
}
