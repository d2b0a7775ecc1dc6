// Package firewall finds rules of other programs that refuse connections to endpoints of Services.
//
//	targets := firewall.TargetsOf(servicePort)
//	findings, err := firewall.Look(ctx, client, targets, mark)
//	for _, f := range findings {
//		fmt.Println(f.Where, f.By, f.Remedy)
//	}
//
// Look tries a sample of connections that our tables have translated. To follow one packet only, call Read, and then
// the methods of the Firewall that it returns. The rules of our tables cannot help: a packet that they accept is
// dropped if another base chain drops it.
//
// A packet follows the rules in the order of the kernel (evaluate.go). The rules are those of nf_tables, including
// those of iptables-nft (expressions.go), and those of legacy ip_tables (xtables.go). A condition is uncertain if the
// package does not understand it, or does not know that property of the packet. A packet counts as refused only if no
// uncertain rule accepts it. If one may, the finding names it (Unless).
//
// Look reports only what concerns Services in general: the policy of a base chain, or a rule with no other condition
// than the connection's state or the mark. A rule about certain addresses, ports or interfaces is intended, for example
// by a NetworkPolicy.
package firewall
