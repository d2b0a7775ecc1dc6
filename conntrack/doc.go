// Package conntrack deletes flows from the kernel's connection tracking table whose translation, or
// lack of one, comes from rules that are no longer in force.
//
// Nat chains see only the first packet of a flow; the flow's entry keeps their decision as long as
// packets come. Most flows should go on undisturbed when rules change. Two kinds must not:
//
//   - UDP flows to an endpoint that is not serving any more, or to a frontend that is gone.
//     A client that keeps its port would talk into the void for ever. Connections of TCP and
//     SCTP to such an endpoint end by themselves and are left alone, as kube-proxy leaves them.
//   - Flows whose first packet came before the rules: never translated, never answered,
//     to a frontend, a cluster IP or a Service CIDR. Repeated packets, a SYN of TCP among
//     them, match the entry, bypass translation and keep the entry alive.
//
// A [Reconciler] finds and deletes exactly these, after the commit that made them stale. It leaves
// alone flows to any other place, translated flows at a node-port number that is not ours (another
// program may publish the same number), and flows to node ports at addresses that are not node-port
// addresses.
//
// # What the kernel filters
//
// Read in the source of Linux 6.18 and held against the kernel by the tests. A dump request
// (IPCTNL_MSG_CT_GET with NLM_F_DUMP) can carry:
//
//   - the family in nfgenmsg; no tuple filter works without one (EOPNOTSUPP)
//   - CTA_FILTER (5.8) with CTA_FILTER_ORIG_FLAGS and CTA_FILTER_REPLY_FLAGS, bit masks in
//     host byte order that say which parts of CTA_TUPLE_ORIG and CTA_TUPLE_REPLY count:
//     source, destination, protocol, ports, ICMP fields. Ports need the protocol (EINVAL).
//   - CTA_STATUS with CTA_STATUS_MASK: (status & mask) == value, 0 included. Older kernels
//     ignore both.
//   - CTA_ZONE in recent kernels; the zone in a tuple is read but does not filter
//   - CTA_MARK with CTA_MARK_MASK
//
// There are two exceptions. The kernel inverts the comparison of IPv6 addresses: a filter for one
// address returns all other flows (measured on 6.18). It does not compare ports of SCTP (measured).
// Kernels before 5.8 ignore CTA_FILTER and return everything. Therefore this package never sends
// IPv6 addresses, and compares each flow with the filter again: the kernel's filter only saves
// work. A kernel that refuses a filter gets none again.
//
// A filtered dump still walks the whole table in the kernel, but neither copies nor decodes what it
// leaves out. Measured with 262,144 buckets on two cores: cleaning up one frontend takes 9 ms in an
// empty table and 17 ms among 200,000 foreign flows; reading all these flows without a filter takes
// 420 ms.
//
// # Deletion
//
// A deletion names the original tuple, the zone and CTA_ID. The kernel deletes nothing when
// the entry it finds has another ID, so a newer flow of the same addresses survives. The
// ID is a keyed hash of the entry's place in memory and its addresses.
package conntrack
