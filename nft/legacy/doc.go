// Package legacy finds what kube-proxy left on a node and removes it, and nothing else:
// no iptables, ipset or nft program is run, no kernel module loaded, no table created.
//
// There are four places to look, the backends:
//
//	Xtables      tables nat, filter and mangle of ip_tables and ip6_tables, over the
//	             socket options that iptables-legacy uses
//	Compat       the tables of the same names in nf_tables, as iptables-nft writes them
//	ProxyTables  the tables kube-proxy of nf_tables, families ip and ip6
//	IPVS         the device kube-ipvs0, ipsets named KUBE-*, virtual servers
//
// # What is kube-proxy's
//
// Classify tells by table and name. Chains of the kubelet (KUBE-FIREWALL, its canary, the
// hint, the mark for dropping) and those of other programs that borrow the prefix
// (kube-router's, for one) stay. A rule outside kube-proxy's chains is kube-proxy's if it
// stands in a base chain, sends to one of the chains where kube-proxy's rules begin, and
// asks for nothing but a connection state: so are all of kube-proxy's own. Texts and
// comments are not evidence; they have changed from release to release.
//
// Any other rule that sends to a chain of kube-proxy's is foreign: it stays and so does
// that chain, without its rules, for the reference would dangle. A packet that is sent
// there comes straight back. KUBE-MARK-MASQ is the exception and keeps its rule, which
// touches nothing but the mark: host port plug-ins borrow it to ask for masquerading.
//
// A kubelet before 1.27 makes KUBE-MARK-MASQ and KUBE-POSTROUTING anew within a minute. They
// do no harm: what they masquerade has been marked for it.
//
// Rules that others have put inside kube-proxy's chains cannot be told apart and go with
// them, as they would at kube-proxy's next write.
//
// # How it is removed
//
// A table of Xtables is replaced by one system call, which the kernel does atomically; the
// counters of the rules that stay are carried over. Extensions with a memory in the rule
// (limit, quota, statistic) begin anew, as they do whenever iptables-legacy writes. Both
// nf_tables backends go in one transaction, which Messages also hands out for use in a
// larger one. Each removal reads afresh, changes only what Take would have shown, and is
// empty the second time. A live kube-proxy (Processes) writes everything again as soon as
// it misses its canary chain: stop it first.
package legacy
