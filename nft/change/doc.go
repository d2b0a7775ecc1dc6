// Package change works out which operations turn one table into another, and in which batches they go
// to the kernel. Diff compares two tables. A Journal, made with NewJournal, records the changes of one.
// It is pure, as package nft is.
//
// State is two values: the wanted tables and the applied ones. Diff gives the batch that turns the
// second into the first. A Journal is a wanted table together with what has changed since the last
// commit, so that a change costs what it touches and not what the table holds. The journal also records
// what another program did to the table, and the next batch repairs it. Found tells it what the kernel has: the
// differences go into the next batches, some of them into each.
//
// Parts and Phases say where the kernel needs several batches for one, WithoutDestroy
// where some kernels need another one.
//
// # Tables that are made anew
//
// A table is replaced, in one batch, in four cases: it has no marker of ours; a set or a base
// chain of the same name is defined in another way; its ownership changes; it is to get an owner and lacks a
// base chain. The number in the marker
// alone is no reason: the definitions show what it stands for, and the kernel does not change a
// marker in place.
//
// Replacing a table loses packets. The kernel swaps the tables at once, but a packet that has
// entered a chain of the old table goes on there, and finds the elements of its maps gone. Behind
// the first lookup the packet is dropped and sent again. Before it, the packet goes on
// untranslated, and its connection fails. On a busy machine about one in a hundred of the
// connections made at that very moment failed. Established connections and the entries of affinity
// maps stay.
package change
