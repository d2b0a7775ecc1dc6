// Package migrate moves a node from kube-proxy to kube-nft and back.
//
// NewPlan says what exists, what of it will go, and what an operator should know first; it changes
// nothing. A Takeover moves the node to kube-nft. The daemon drives it around its first commit:
//
//	needed, running, err := t.Begin(ctx)              // look; wait for a live kube-proxy to end
//	messages, generation, err := t.First(ctx, want, missing) // what the first commit carries
//	verified, err := t.Verify(ctx, want)              // after the commit
//	err = t.Remove(ctx, missing)                      // what remains of kube-proxy's; again after an error
//
// Each step finds out again what is left to do: a rerun after an interruption continues where the first
// run ended, and a second run after a complete one changes nothing. A Rollback moves the node back.
//
// # What a takeover must not lose
//
// Compare holds the frontends that kube-proxy serves, read from its rules, against those of our tables.
// Takeover.permit asks it before anything of kube-proxy's is removed, wherever that is: too many
// frontends that would vanish are a *LossError, and nothing is touched. Our own first commit has to
// wait as well, for our tables lie over kube-proxy's. A Rollback compares in the other direction.
//
// # The order of a takeover
//
// Our tables are committed while kube-proxy's rules are still in place, at a priority that wins
// over them. The same transaction removes what kube-proxy has in nf_tables that can refuse a
// packet, in its own tables or in iptables-nft's. Then the takeover reads our tables back and looks
// every frontend up as a packet would. Only if all is there does the rest go. The legacy ip_tables
// table filter goes first: its rules can refuse connections, while rules in nat only lose.
//
// The transaction that brings our tables leaves kube-proxy's nat chains alone. Otherwise a packet
// could pass the hook at our priority before the transaction and the hook of kube-proxy's after it,
// and nothing would translate it. Measured, with 900 new connections a second on a busy machine:
// one packet in about a hundred takeovers. While both exist, ours win and theirs catch such a
// packet. waitForPackets waits until there is no such packet any more.
//
// The way back is the same. First our chains let go of new connections, which kube-proxy serves
// from then on; then the tables are deleted. While the kernel deletes a table, packets still in its
// rules find elements in its sets but no longer in its maps. Such a packet would meet a known
// cluster IP without a frontend, and its connection would be rejected (measured, about one in a
// hundred).
//
// Connections under way keep their translation, whichever proxy made it.
package migrate
