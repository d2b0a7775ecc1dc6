// Command soak lets kube-nft follow a cluster that does not come to rest, for as long as one
// likes: it is the program behind make soak and make chaos.
//
// Services and endpoints of both families change at random behind an API server that cuts
// connections, loses its history, answers late, twice and not at all, and whose clock jumps.
// Meanwhile nft changes and deletes tables. All the time clients ask Services that
// stay, over TCP and UDP, IPv4 and IPv6, at cluster IPs and node ports, by new connections and
// by lasting ones; two more ask the Services that change. Every Service has servers of its
// own: a question at a server of another Service, or an answer from an endpoint that the
// Service has not had since the kernel was last known to be in step, ends the run.
//
// Some Services do what a tenant may do to all others: session affinity over many frontends, hundreds
// of source ranges that change, the addresses of others, hundreds of external IPs, a UDP endpoint
// that moves fifty times a second; a hundred Services come and go at a time. Clients ask those of
// them that stay. An answer to a client that is in no source range ends the run, too, and with
// -chaos an answer from another endpoint than the one that a client has affinity to and that stays.
//
// Every cycle ends with a calm, in which kube-nft has to come to hold exactly what a fresh
// start would program, and to answer every question. What it uses then, goroutines,
// descriptors and memory, must not grow. After the last one, what nft lists is compared with
// what it lists once the tables are deleted and kube-nft has started afresh.
//
// Without -chaos nft changes kube-nft's tables, too. That costs answers; how long a client
// goes without one is bounded.
//
// With -chaos kube-nft is killed again and again, the node's addresses come and go, and no
// exchange may fail. For this kube-nft runs with --table-ownership=auto. nft goes on changing
// other tables all the time, and ours as far as the kernel refuses it: between a kill and the
// moment when the next kube-nft has adopted the tables they have no owner, so that a foreign
// commit then would break Services by right, and could even cut kube-nft off from its API
// server; nft leaves them alone meanwhile. Two losses have to be told apart, both of UDP. An answer
// that is on its way while its endpoint is removed finds its entry in connection tracking deleted, as
// it must be, and is not translated back. Such a question was delivered to an endpoint that
// has been removed since the last calm. And the first packet of a client with affinity to
// an endpoint that has been removed is dropped with its affinity entry, if that has not been cleaned up
// yet. The client's next question is answered, or the one after both.
//
// The clock of this machine is left alone: all processes have it. What jumps is the control
// plane's clock against it, as far as objects show it, and with -chaos each kube-nft lives in
// a time namespace with another time since boot. That the wall clock may jump under a running
// kube-nft is held by TestClockMayJump of package sync.
//
// Two fixtures judge the answers. The ledger knows which endpoints may answer for a Service now. The pulse is a clock
// that stands still while this machine has no time for the program, so that a slow machine is not kube-nft's fault.
//
// All of it happens in a network namespace that ends with the program; it needs root, nft, and
// unshare for -chaos.
package main
