// Package readback shows a table as Services. Make a [Table] with [New] of a table that was read from the kernel, or
// that is wanted. [Table.Frontends] lists the frontends with their endpoints, [Table.Explain] says where a connection
// goes and why, [ReadConnections] counts connections and [ReadAffinityEntries] lists clients with session affinity.
//
// The package knows the names of package layout and does not know what is wanted. So it shows what a table does, also
// if another program has changed the table.
package readback
