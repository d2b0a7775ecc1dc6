// Package nft holds the values of nf_tables: tables, sets, elements, chains, rules and their
// statements, and batches of operations. It is pure: it opens no socket, knows no Service and
// takes no context. Package nft/kernel sends batches and reads tables; nft/services makes
// tables out of Services.
//
// A statement has four faces, which stand in one file: its text as nft prints it, the expressions
// that the kernel evaluates, how it is read back from those, and its effect on a packet in a trace.
//
// Package nft/change works out what turns one table into another.
package nft
