// Package kernel speaks nf_tables to the kernel over netlink. Open returns a Client, a lasting socket. Probe finds
// out what the kernel can do, Read returns our tables, and Commit sends a batch in one system call: the kernel
// applies all of it or nothing, and an error names the operation and the element that it refused. A Monitor
// reports what others commit. AcquireLock acquires the right to program a network namespace.
//
// It is the one package that opens sockets for nf_tables, and it knows no Service. Package wire has the bytes.
//
// # Owned tables
//
// A table with the flags owner and persist (Linux 6.9) belongs to the socket that made it. As
// long as that is open no other process can change the table: nft gets "Operation not permitted", and
// nft flush ruleset passes over it. When the socket is closed the table stays, any program can
// change it, and the next kube-nft adopts it by adding the table with the same flags. Measured on
// Linux 6.18 with nft 1.0.6; and these are the reasons why the default is not to own:
//
//   - Of a table whose socket is closed nft 1.0.6 prints an empty list of flags, which it does
//     not load again, and in JSON what happens to be in its memory.
//   - While kube-nft runs nft list prints "flags owner" and the program's name, which our text
//     does not have: it is for loading, and would not be ours if it had.
//   - The flags of a table cannot be changed in place. To own a table that exists, or to give
//     it up, is to replace it, in one batch.
//   - Owner without persist is never used: the table would vanish with the process.
package kernel
