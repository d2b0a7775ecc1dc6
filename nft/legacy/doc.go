// Package legacy finds kube-proxy's rules on a node and removes them. Node.Inventory reads all places and returns an
// Inventory. Its plan lists what a removal would do, and its Remove methods do it. Watch looks for a kube-proxy that
// comes back. The package runs no iptables, ipset or nft program, loads no kernel module and creates no table.
//
// There are four places to look, the backends:
//
//	Xtables      tables nat, filter and mangle of ip_tables and ip6_tables, over the
//	             socket options that iptables-legacy uses (iptables.go, sockopt.go, blob.go)
//	Compat       the tables of the same names in nf_tables, as iptables-nft writes them
//	             (nftables.go)
//	ProxyTables  the tables kube-proxy of nf_tables, families ip and ip6 (nftables.go)
//	IPVS         the device kube-ipvs0 and virtual servers (ipvs.go), ipsets named KUBE-*
//	             (ipset.go)
//
// # What is kube-proxy's
//
// The table and the name of a chain show which program made it (classify.go). Two kinds of chains stay:
// the kubelet's chains (KUBE-FIREWALL, its canary, the hint, the mark for dropping), and chains of other
// programs that use the same prefix, such as kube-router.
//
// A rule outside kube-proxy's chains is kube-proxy's if it is in a base chain, jumps to one of the chains
// where kube-proxy's rules begin, and has no condition except a connection state. Comments are not
// evidence: they have changed from release to release.
//
// Any other rule that jumps to a chain of kube-proxy's is foreign. The rule stays, and so does that
// chain, since the kernel deletes no chain in use. But the removal deletes the chain's rules, so that a
// packet in it returns at once. KUBE-MARK-MASQ is the exception: it keeps its rule, which changes only
// the mark, because plug-ins for host ports use it to request masquerading.
//
// Foreign rules inside kube-proxy's chains look like kube-proxy's. The removal deletes them with the
// chain, as kube-proxy's next write would.
//
// A kubelet before 1.27 makes KUBE-MARK-MASQ and KUBE-POSTROUTING again within a minute. They are
// harmless: they masquerade only marked packets.
//
// # How it is removed
//
// One system call replaces a whole table of Xtables. Rules that stay keep their counters.
// Extensions with a state in the rule (limit, quota, statistic) are reset, as at every write of
// iptables-legacy. One transaction removes the rules of both nf_tables backends; Messages returns the
// same messages for use in a larger transaction.
//
// Each removal reads again, changes only what an Inventory lists, and does nothing the second time. A running
// kube-proxy (Processes) writes everything again as soon as its canary chain is missing: stop it first.
package legacy
