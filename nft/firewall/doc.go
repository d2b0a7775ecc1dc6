// Package firewall says what the rules of other programs do with connections that our tables have
// translated. Rules in our tables cannot accept what another base chain drops.
//
// It follows one packet at a time through the rules that the kernel has, as the kernel would (evaluate.go):
// those of nf_tables, iptables-nft's among them (expressions.go), and those of legacy ip_tables
// (xtables.go). What it does not know of the packet, or does not understand of a rule, makes the
// rule's condition uncertain. A packet counts as refused only if no uncertain rule accepts it.
//
// What refuses the packet must also concern Services in general: the policy of a base chain, or a
// rule without conditions but for the state of connections and the mark. A rule about certain addresses,
// ports or interfaces is intended, such as by a NetworkPolicy.
package firewall
