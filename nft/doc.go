// Package nft declares kube-nft's ruleset, computes what a change of it takes, and speaks
// nf_tables to the kernel. It needs no nft program.
//
// # The ruleset
//
// There is one table of each family, ip kube-nft and ip6 kube-nft, of the same shape. Its
// chains, rules and sets are as many for ten Services as for thirty thousand; what changes
// are the elements of its maps and sets. Session affinity is the exception: a Service port
// that asks for it has maps, sets and chains of its own.
//
// A frontend is a place where a Service port can be reached: an address, protocol and port,
// or the protocol and port of a node port. The map services leads from a frontend to its
// policy, a chain named after what it does and after the capacity of its endpoint lists, which
// is their length or a little more (1, 4, 8, 12, ..., 32, 40, 48, 56, 64, 80, ...):
//
//	cluster-N                cluster IP, N endpoints: masquerade clients that are no pods
//	cluster-local-M          the same with internal traffic policy Local, M endpoints here
//	external-N               other addresses: always masquerade
//	external-local-N-M       external traffic policy Local: pods and this node get the
//	                         cluster-wide list, everybody else the M endpoints here
//	node-port-…              the same for node ports
//	guarded-…                before any of these: drop sources that are not allowed
//	reject-new               no endpoints anywhere
//
// Frontends of equal policy share one chain. Those of usual lengths are always there, others
// come with the first frontend and go
// with the last. A policy ends in a pick chain: pick-N looks up the frontend and a random
// number below N in the map endpoints, and translates the destination to what it finds. If
// that is nothing, for the list is shorter, it draws again: each endpoint is equally likely,
// and a list that grows from 9 to 10 is a plain element more. With one
// chain for each length, every such change was one of the verdict, for which the kernel walks
// all of the map services (4 ms at 30,000 Services, against 10 us for a plain element), and a
// rolling restart of 1,000 endpoints made and removed chains all the time (60 ms for each).
//
// # Packet path
//
//	hook         priority  chain                   does
//	prerouting   -101      nat-prerouting          translate destinations
//	output       -101      nat-output              the same for this node's own connections
//	input         100      nat-input               remember clients (session affinity)
//	postrouting    99      nat-postrouting-record  the same for forwarded connections
//	postrouting   100      nat-postrouting         masquerade
//
// All of them are nat chains: they see the first packet of a connection and no other, so
// established traffic costs nothing. The two that remember clients exist while a Service port
// asks for session affinity. Reject and drop work there too (reject since kernel
// 5.9), which is why there is no filter chain. At -101 the table wins against rules of
// kube-proxy in every mode, in whatever order they were loaded.
//
// With Config.Localhost the kernel routes packets to 127.0.0.0/8 from anywhere, and
// nat-prerouting drops those that did not come over lo. As a nat chain it sees packets that
// connection tracking has taken in as the first of a connection. What is not tracked passes:
// packets that a rule of somebody else exempts (notrack), and those that tracking calls
// invalid, such as a TCP segment out of the blue. So a neighbour on the link cannot connect,
// but may find out which ports are in use by what is answered with a reset and what is not;
// and where somebody has exempted 127.0.0.0/8 from tracking, it can connect. To stop that
// takes a filter chain that all traffic goes through, for which every packet of established
// connections would pay.
//
// Others may rely on the names of the tables, on the maps services and node-ports, and on
// the priorities. The packet mark is our own: one bit, set before and cleared in
// postrouting.
//
// # Two shapes that were considered
//
// Where a choice among N endpoints needs an anonymous set of protocols in each rule, for
// nft insists on a test for protocols that have ports before it accepts a port translation,
// one named set serves all (measured with nft 1.0.6: loads, lists and reloads unchanged).
// And where skeletons end each pick chain with the same lookup once more at index 0, for
// lists that shrink between two lookups of one packet, ours goes on to pick-1, which is that
// lookup: half the rules bind the large maps.
//
// # Others
//
// What others do to the tables is heard by a Monitor. Ruleset.Note follows the notifications
// object by object, and from then on Changes contains the repair, without a read: measured at
// 10,000 Services with 10 endpoints each, a deleted element is back within 0.2 ms and deleted
// rules within 15 ms. A deleted table takes as long as the kernel does to make it again.
//
// With Ruleset.SetOwned the tables have the flags owner and persist (Linux 6.9): as long as
// our socket is open nobody else can change them, nft gets "Operation not permitted", and
// nft flush ruleset passes over them. When the socket is closed they stay, anybody can change,
// flush or delete them, and the next kube-nft adopts them by adding the table with the same
// flags. Measured on Linux 6.18 with nft 1.0.6; and these are the reasons why the default is
// not to own:
//
//   - Of an orphan nft 1.0.6 prints an empty list of flags, which it does not load again, and
//     in JSON what happens to be in its memory, because it does not know the flag persist.
//   - While kube-nft runs nft list prints "flags owner" and the program's name, which our text
//     does not have: it is for loading, and would not be ours if it had.
//   - The flags of a table cannot be changed in place. To own a table that exists, or to give
//     it up, is to replace it, in one batch.
//   - Owner without persist is never used: the table would vanish with the process.
//
// # Tables that are made anew
//
// A table is replaced, in one batch, if it has no marker of ours, if a set or a base chain of
// the same name is defined in another way, and if the owner changes. That comes with a switch
// of --table-ownership or of the counters, with Loop.Disown, and with a version that needs it.
// A marker of another schema alone is none of these: what it stands for shows in the
// definitions, the rest is an ordinary difference, and the old marker stays, for the kernel
// does not change it.
//
// It is avoided because it is not without loss. The kernel swaps the tables at once, but a
// packet that has entered a chain of the old one goes on there, and finds the elements of its
// maps gone. Behind the first lookup that means a drop, and the packet is sent again. Before
// it, the packet looks like one to no frontend: it goes on untranslated, and its connection,
// which has no translation from then on, fails. On a busy machine about one new connection in
// a hundred that are made at the very moment was seen to. Established connections and what
// clients are remembered with stay.
//
// # State
//
// State is two values, the tables that are wanted and those that are applied. Ruleset holds
// the wanted ones together with what the changes since the last commit touched, Kernel.Read
// returns the others, Diff turns the second into the first. The alternative, to render and
// compare whole tables for every change, was simpler by one type and cost in proportion to
// the cluster. Of a change, Ruleset.Changes is that difference. Diff makes it from the touched
// parts of both tables if chains or sets are among them. Most changes are of elements alone,
// whose operations come straight from what was touched: one endpoint takes 5 us instead of 13
// from its EndpointSlice to the bytes of the batch.
package nft
