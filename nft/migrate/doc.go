// Package migrate moves a node from kube-proxy to kube-nft and back.
//
// NewPlan says what is there, what of it will go and what an operator should know first; it
// changes nothing. A Takeover is the way there. Each of its steps looks afresh at what is left
// to do: a rerun after an interruption goes on where the first run ended, and a second run
// after a complete one changes nothing. A Rollback is the way back.
//
// # The order of a takeover
//
// Our tables are committed while kube-proxy's rules are still in place, at a priority that
// wins over them. What kube-proxy has in nf_tables that can refuse a packet, in its own
// tables or in those of iptables-nft, goes in the same transaction. Then our tables are read
// back and every frontend is looked up as a packet would; only if that holds, the rest goes,
// of the legacy ip_tables table filter first: its rules can refuse connections, those in nat
// just lose.
//
// kube-proxy's nat chains are not removed in the transaction that brings ours. A packet can
// pass the hook at our priority before it and the hook of kube-proxy's after it; it would not
// be translated at all. Measured, with 900 new connections a second on a busy machine: one
// packet in about a hundred takeovers. With both there, ours win and theirs catch it; settle
// waits until there is no such packet any more.
//
// The way back is the same: first our chains let go of new connections, which are
// kube-proxy's from then on, then the tables are deleted. When the kernel deletes a table,
// packets that are still in its rules find elements in its sets but no longer in its maps: a
// cluster IP would be known and its frontend not, and the connection be rejected (measured,
// one in about a hundred).
//
// Connections that are under way keep their translation, whoever made it.
package migrate
