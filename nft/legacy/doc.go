// Package legacy finds what kube-proxy left on a node and removes it, and nothing else:
// no iptables, ipset or nft program is run, no kernel module loaded, no table created.
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
// The table and the name of a chain show who made it (classify.go). Two kinds of chains stay: the
// kubelet's chains (KUBE-FIREWALL, its canary, the hint, the mark for dropping), and chains of
// other programs that use the same prefix, such as kube-router.
//
// A rule outside kube-proxy's chains is kube-proxy's if all of this holds: it stands in a base
// chain; it leads to one of the chains where kube-proxy's rules begin; its only condition, if any,
// is a connection state. Comments are not evidence: they have changed from release to release.
//
// Any other rule that leads to a chain of kube-proxy's is foreign. The rule stays, and so does that
// chain, since the kernel deletes no chain in use; but the chain loses its rules. A packet that
// enters it returns at once. KUBE-MARK-MASQ is the exception. It keeps its rule, which changes
// nothing but the mark: plug-ins for host ports use it to request masquerading.
//
// Foreign rules inside kube-proxy's chains look like kube-proxy's. They go with the chain, as they
// would at kube-proxy's next write.
//
// A kubelet before 1.27 makes KUBE-MARK-MASQ and KUBE-POSTROUTING again within a minute. They do no
// harm: they masquerade only marked packets.
//
// # How it is removed
//
// One system call replaces a whole table of Xtables. Rules that stay keep their counters.
// Extensions with a state in the rule (limit, quota, statistic) begin anew, as they do at every
// write of iptables-legacy. Both nf_tables backends go in one transaction; Messages returns the
// same messages for use in a larger one.
//
// Each removal reads again, changes only what Take shows, and does nothing the second time. A live
// kube-proxy (Processes) writes everything again as soon as it misses its canary chain: stop it
// first.
package legacy
