// Package migrate moves a node from kube-proxy to kube-nft and back.
//
// NewPlan says what is there, what of it will go and what an operator should know first; it
// changes nothing. A Takeover is the way there, in steps of which each looks afresh at what
// is left to do: a rerun after an interruption goes on where the first run ended, and a
// second run after a complete one changes nothing. Remove is the way back.
//
// # The order of a takeover
//
// Our tables are committed while kube-proxy's rules are still in place, at a priority that
// wins over them. What kube-proxy has in nf_tables, its own tables or those of iptables-nft,
// goes in the same transaction. Then our tables are read back and every frontend is looked
// up as a packet would; only if that holds, what is left in the legacy ip_tables goes, table
// filter first: its rules can refuse connections, those in nat just lose.
//
// One packet can pass the hook at our priority before a transaction and the hook of
// kube-proxy's after it, some hundred nanoseconds apart: it is not translated at all. The
// loop looks for such connections after each commit and deletes their entries, so that the
// repetition of the packet is translated.
//
// Connections that are under way keep their translation, whoever made it.
package migrate
