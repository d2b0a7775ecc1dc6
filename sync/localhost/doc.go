// Package localhost serves node ports at loopback addresses.
//
// For 127.0.0.1 the ruleset does it, once the kernel routes such packets: Route sets the
// sysctl. The kernel never routes ::1, so for TCP a Proxy listens there and copies, and UDP
// and SCTP are not served.
//
// Who connects is this node itself, for which external traffic policy Local does not hold:
// connections go to the cluster-wide list, as those to every other address of the node do.
package localhost
