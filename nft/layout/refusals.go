package layout

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
