// Package conntrack deletes flows from the kernel's connection tracking table whose translation, or
// lack of one, comes from rules that are no longer in force:
//
//	table, err := conntrack.Open()
//	reconciler := conntrack.NewReconciler(table)
//	result, err := reconciler.Full(ctx, changes, desired) // after a start, or when changes may have been missed
//	result, err = reconciler.Clean(ctx, changes, desired) // after each commit, with what it has changed
//
// Nat chains see only the first packet of a flow; the flow's entry keeps their decision as long as
// packets come. Most flows should go on undisturbed when rules change. Two kinds must not:
//
//   - UDP flows to an endpoint that does not serve any more, or to a frontend that is gone. The packets of
//     a client that keeps its port would follow the entry for ever, and get no answer. Connections of TCP and
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
//   - CTA_FILTER (5.8) with CTA_FILTER_ORIG_FLAGS, a bit mask in host byte order that says which
//     parts of CTA_TUPLE_ORIG count. This package uses the protocol alone. The kernel inverts the
//     comparison of IPv6 addresses and does not compare ports of SCTP (measured on 6.18).
//   - CTA_STATUS with CTA_STATUS_MASK: (status & mask) == value, 0 included. Kernels before
//     5.15 ignore both.
//   - CTA_ZONE in recent kernels; the zone in a tuple is read but does not filter
//   - CTA_MARK with CTA_MARK_MASK
//
// Kernels before 5.8 ignore CTA_FILTER and return everything. Therefore this package compares each flow
// with the filter again: the kernel's filter only saves work. A kernel that refuses a filter gets none
// again.
//
// A filtered dump still walks the whole table in the kernel, but neither copies nor decodes what it
// leaves out. Filters name no addresses: the clean-up of a changed endpoint of UDP reads all flows of
// UDP in its family.
//
// # Deletion
//
// A deletion names the original tuple, the zone and CTA_ID. The kernel deletes nothing when
// the entry it finds has another ID, so a newer flow of the same addresses survives. The
// ID is a keyed hash of the entry's place in memory and its addresses.
package conntrack
