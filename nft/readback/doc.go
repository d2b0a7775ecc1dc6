// Package readback sees a table as Services, whether it was read from the kernel or is wanted: its
// frontends with their endpoints, what becomes of a connection and why, the clients with affinity
// entries, the counts of connections. It knows the names of package layout and nothing of what
// anybody wants. So it tells the truth about tables of other versions, and of tables that somebody has
// changed.
package readback
