// Package nft holds the values of nf_tables: tables, sets, elements, chains, rules and their
// statements, and batches of operations. It is pure: it opens no socket, knows no Service and
// takes no context. Package nft/kernel sends batches and reads tables; nft/services makes
// tables out of Services.
//
// A statement has four faces, which stand in one file: its text as nft prints it, the expressions
// that the kernel evaluates, how it is read back from those, and its effect on a packet in a trace.
//
// State is two values: the wanted tables and the applied ones. Diff turns the second into the
// first. A Journal is a wanted table together with what has changed since the last commit, so that
// a change costs what it touches and not what the table holds. The journal also notes what somebody
// else did to the table, and the next batch repairs it.
//
// # Tables that are made anew
//
// A table is replaced, in one batch, in three cases: it has no marker of ours; a set or a base
// chain of the same name is defined in another way; its ownership changes. The number in the marker
// alone is no reason: the definitions show what it stands for, and the kernel does not change a
// marker in place.
//
// Replacing a table loses packets. The kernel swaps the tables at once, but a packet that has
// entered a chain of the old table goes on there, and finds the elements of its maps gone. Behind
// the first lookup the packet is dropped and sent again. Before it, the packet goes on
// untranslated, and its connection fails. On a busy machine about one in a hundred of the
// connections made at that very moment failed. Established connections and the entries of affinity
// maps stay.
package nft
