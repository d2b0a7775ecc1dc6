package layout

import (
	"net/netip"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// The fixed sets and maps, in the order in which they are created and listed. Those that
// hold most come first: the kernel finds a set by walking the table's list of them.
const (
	ServicesMap          = "services"
	NodePortsMap         = "node-ports"
	BeforeNodePortsSet   = "before-node-ports" // frontends at addresses where node ports are served, too
	NodePortAddressesSet = "node-port-addresses"
	ClusterIPsSet        = "cluster-ips"
	ServiceCIDRsSet      = "service-cidrs"
	HairpinSet           = "hairpin"
	MembersSet           = "members" // endpoints that affinity entries may name
	PingedSet            = "pinged"  // addresses that answer echo requests; exists while there are some
	AffinityFrontendsMap = "frontends-with-affinity"
	AffinityNodePortsMap = "node-ports-with-affinity"
	AffinityPrefix       = "affinity-" // of affinity maps, and in the names of chains before a number
)

// The fixed chains. Base chains are named after their type and hook.
const (
	MarkChain             = "mark-for-masquerade"
	MasqueradeChain       = "masquerade-marked"
	RejectChain           = "reject-new"
	RejectUnusedPortChain = "reject-unused-port"
	DropSourceChain       = "drop-source"
	DropNotLocalChain     = "drop-not-local"
	// as DropNotLocalChain, but segments of connections under way are reset; exists while a rule or element leads there
	ResetNotLocalChain       = "reset-not-local"
	DropUnusedAddressChain   = "drop-unused-address"
	PassChain                = "pass-on" // without rules; it exists while a rule or element leads there
	ServicesChain            = "services"
	MarkUnlessPodChain       = "mark-unless-pod" // of Service ports with affinity
	UpdateAffinityChain      = "update-affinity"
	PreroutingChain          = "nat-prerouting"
	OutputChain              = "nat-output"
	InputChain               = "nat-input"
	AffinityPostroutingChain = "nat-postrouting-affinity"
	PostroutingChain         = "nat-postrouting"
	PingPreroutingChain      = "nat-prerouting-ping"
	PingOutputChain          = "nat-output-ping"
)

// A RefusalCause is a reason for which our rules reject or drop new connections.
type RefusalCause struct {
	Name  string // in metrics and commands
	Chain string // that everything refused for it ends in; its first rule counts
}

// RefusalCauses lists all of them.
func RefusalCauses() []RefusalCause {
	return []RefusalCause{
		{"no-endpoints", RejectChain},              // a frontend of a Service that has no endpoint anywhere
		{"source-range", DropSourceChain},          // a client outside of loadBalancerSourceRanges
		{"not-local", DropNotLocalChain},           // a traffic policy Local, and no endpoint on this node
		{"unused-port", RejectUnusedPortChain},     // a cluster IP, and a port that no Service port has
		{"unused-address", DropUnusedAddressChain}, // an address of a Service CIDR that no Service has
	}
}

// LocalhostAddress is the loopback address of a family at which node ports are served.
func LocalhostAddress(f nft.Family) netip.Addr {
	if f == nft.IP6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// Comment is what nft list shows beside a frontend: namespace/name:port. Three names of 63
// characters overflow the 127 bytes of a comment; then its end is cut off. It is what the
// kernel will hold, whatever a name is made of.
func Comment(id tracker.PortID) string {
	s := id.Namespace + "/" + id.Service
	if id.Port != "" {
		s += ":" + id.Port
	}
	return nft.PlainComment(s)
}

// A PortName names a Service port as the comment of its elements does. The comment holds
// 127 bytes: of very long names the end is missing.
type PortName struct{ Namespace, Name, Port string }

// String returns "namespace/name:port", without the colon if the port has no name.
func (n PortName) String() string {
	if n == (PortName{}) { // an element of another program, without a comment
		return "(unknown)"
	}
	if n.Port == "" {
		return n.Namespace + "/" + n.Name
	}
	return n.Namespace + "/" + n.Name + ":" + n.Port
}

// ParsePortName reads what Comment or CommentWith wrote.
func ParsePortName(comment string) (n PortName) {
	n.Namespace, n.Name, _ = strings.Cut(NameIn(comment), "/")
	n.Name, n.Port, _ = strings.Cut(n.Name, ":")
	return n
}
