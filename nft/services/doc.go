// Package services turns the Service ports of a cluster into nftables tables.
//
// To use it, make a [Ruleset] with [NewRuleset]. Give it what the kernel holds with [Ruleset.Adopt], so that a restart
// writes only what differs. Then apply each delta of the tracker, commit the changes, and say that they are in the
// kernel:
//
//	ruleset := services.NewRuleset(services.Config{Families: nft.Families, MasqueradeBit: 14})
//	ruleset.Adopt(tables)         // once, as kernel.Client.Read returned them
//	ruleset.Apply(tracker.Take()) // each time something has changed
//	err := client.Commit(ctx, ruleset.Changes())
//	ruleset.Committed()           // if there was no error
//
// [Ruleset.Want] returns the complete tables, for a dry run or for a comparison with the kernel.
// [Ruleset.TouchedFrontends] says which endpoints may keep connections to a frontend, [Ruleset.Conflicts] which
// Services ask for the same frontend.
//
// The package opens no socket. Names and keys come from package layout. Package lists writes endpoint lists, package
// affinity makes the chains of session affinity. Package readback reads tables back as Services.
//
// # The ruleset
//
// In each commit the kernel goes through all chains, and each new set costs a walk through the sets of its table. So
// chains, rules and sets are as many for ten Services as for thirty thousand; what changes are the elements of maps and
// sets. Services of three kinds have chains of their own: with session affinity, with source ranges, and with very many
// frontends and endpoints. There is one table of each family, ip kube-nft and ip6 kube-nft, of the same shape.
//
// A frontend is an address, protocol and port where a Service port can be reached,
// or the protocol and port of a node port. The map services leads from a frontend to its
// policy, a chain named after what it does and after the capacity of its endpoint lists, which
// is their length or a little more (1, 4, 8, 12, ..., 32, 40, 48, 56, 64, 80, ...):
//
//	cluster-N                cluster IP, N endpoints: masquerade clients that are no pods
//	cluster-local-M          the same with internal traffic policy Local, M endpoints here
//	external-N               other addresses: always masquerade
//	external-local-N-M       external traffic policy Local: pods and this node get the
//	                         cluster-wide list, other clients the M endpoints here
//	node-port-…              the same for node ports
//	source-ranges-G-…        before any of these: jump to source-ranges-G, which drops sources that are not in the
//	                         source ranges with number G
//	reject-new               no endpoints anywhere
//	drop-not-local           endpoints, and none that a traffic policy Local allows
//
// A refused connection ends in a chain that is called after the reason (layout.RefusalCauses) and counts it. All
// Services share these chains; a connection that is served does not meet the counters.
//
// Frontends of equal policy share one chain. The chains of usual lengths always exist; others
// come with the first frontend and go with the last. A policy ends in a pick chain: pick-N
// looks up the frontend and a random number below N in the map endpoints-tcp (-udp, -sctp), and translates the
// destination to what it finds. If it finds nothing, because the list is shorter, it draws
// again. So each endpoint is equally likely, and a list that grows from 9 to 10 is a plain
// element more.
//
// A Service port with so many frontends and endpoints that their product is large has its endpoint lists once, with
// a number L that its chains contain (external-list-L, pick-list-L): it has a sum of frontends and endpoints as
// elements, not their product. The addresses are in a map of the list alone (addresses-L), and the port of the
// endpoints in one of the maps ports-tcp-0 to ports-tcp-255 (-udp, -sctp), by the port that a connection goes to. Ports
// of a Service that have the same endpoints share one such list where their own lists would be long together: the
// elements are as many as ports plus endpoints, not ports times endpoints.
//
// Endpoints with different ports, and lists that are long because of weights, are in a map with addresses and ports
// (lists-tcp-L). A slot table has a map and a chain of its own (slots-tcp-L-0, pick-slots-L-0), to which pick-list-L
// goes.
//
// Where the Service asks for consistent hashing (Settings.Maglev), its lists are slot tables of package
// maglev, and its policies (cluster-maglev-N, external-local-maglev-N-M) end in chains maglev-N, which
// look up a hash of the client below N instead of a random number: the same on all nodes. Weights
// without a hash are repeated places in a list.
//
// Source ranges are elements (G . first address) of plain sets, one set for each prefix length in
// use: stored once for all ports and load-balancer IPs of a Service, whose number G is.
//
// # Session affinity
//
// A Service port with session affinity has a number N and a few chains: one for its cluster IP (cluster-affinity-N),
// one for its other frontends (external-affinity-N) and update-affinity-N. The first two look for the client's entry
// before they pick an endpoint; the last makes the entry or refreshes it, when the destination has been translated.
// If several ports of the Service have session affinity, the first two jump to follow-affinity-N or, for the list of
// this node, follow-affinity-local-N, which look for the entry: the kernel goes through all entries of a map for each
// new rule that looks something up there, and the other chains change more often. Each group of endpoints with the
// same port, of the cluster-wide list or of the one of this node, has a number G. Entries are elements (G . client :
// endpoint) of the maps affinity-0 to affinity-63, which packets fill. In the IPv6 table G stands in place of bits 64
// to 95 of the client. The endpoints that entries may name are elements (G . endpoint) of the set members; those of a
// list that ports may share stand there once, under the number of the list.
//
// The commit that takes an endpoint out of its list takes it out of the set members, too: a connection there is
// dropped and makes no entry. The entries that name the endpoint are removed afterwards (package sync/affinityentries).
//
// # Packet path
//
// docs/ruleset.md lists the base chains. All of them are nat chains: they see the first packet of a connection and no
// other, so established traffic costs nothing. The two that update affinity maps exist while a Service
// port asks for session affinity. Reject and drop work in nat chains too (reject since kernel
// 5.9), which is why there is no filter chain. At -101 the table wins against rules of
// kube-proxy in every mode, in whatever order they were loaded.
//
// With Config.Localhost the kernel routes packets to 127.0.0.0/8 from anywhere, and
// nat-prerouting drops those that did not come over lo. It sees the packets that connection
// tracking takes for the first of a connection. Untracked packets pass: those that another
// program's notrack rule exempts, and those that tracking calls invalid, such as a TCP segment out of the
// blue. So a neighbour on the link cannot connect, but may find out which ports are in use;
// where a rule exempts 127.0.0.0/8 from tracking, it can connect.
//
// docs/ruleset.md says what other programs may rely on. docs/decisions has the reasons for these shapes, with their
// measurements.
package services
