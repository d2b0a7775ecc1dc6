package layout

// A Refusal is a reason for which new connections are refused.
type Refusal struct {
	Cause string // as metrics and commands name it
	Chain string // that everything refused for it ends in; its first rule counts
}

// Refusals lists all of them.
func Refusals() []Refusal {
	return []Refusal{
		{"no-endpoints", RejectChain},              // a frontend of a Service that has no endpoint anywhere
		{"source-range", DropSourceChain},          // a client outside of loadBalancerSourceRanges
		{"not-local", DropNotLocalChain},           // a traffic policy Local, and no endpoint on this node
		{"unused-port", RejectUnusedPortChain},     // a cluster IP, and a port that no Service port has
		{"unused-address", DropUnusedAddressChain}, // an address of a Service CIDR that no Service has
	}
}
