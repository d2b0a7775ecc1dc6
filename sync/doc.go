// Package sync keeps the kernel's tables equal to what the tracker says:
//
//	loop := proxysync.New(tracker, ruleset, client, options)
//	loop.CleanFlows(conntrack.NewReconciler(table)) // delete flows that commits make stale
//	loop.CleanAffinity(reader)                      // remove affinity entries of endpoints that have left
//	loop.Watch(monitor)                             // repair what other programs change
//	err := loop.Run(ctx)
//
// The tables can differ from what is wanted after a start, after each change of a Service, after a commit that the
// kernel has refused, and after a commit of another program. One path handles all four. The goroutine of Loop.Run owns
// the wanted ruleset, and knows what the kernel has or that it has to read it. It computes the difference and commits
// it as one netlink batch.
//
//	                        Run
//	                         |
//	                         v
//	+------------------> UNKNOWN -----------------------+
//	|                        | read the tables          | the kernel refuses the batch:
//	|                        | commit the difference    | skip Services (skips.go)
//	|                        v                          | or affinity entries, at most five
//	|                      KNOWN <-----+                | times; then wait and try again
//	|                        |         |                |
//	|                        | the queue notifies:      |
//	|                        | commit what changed      |
//	|                        +---------+                |
//	|                        |                          |
//	+------------------------+                          |
//	^  the commit failed or its outcome is unknown      |
//	|  other program changed our tables, or may (drift) |
//	+---------------------------------------------------+
//
// A commit that fails changes nothing: the rules stay as they were. The loop writes nothing before all sources have
// synced, and removes nothing when it ends. The safety check stops the first commit (SafetyError) if it would empty
// tables that serve, or if a takeover from kube-proxy would lose Services; then the loop stays UNKNOWN and checks
// again.
//
// A commit can make connections and affinity entries stale. To find them takes long, so two other goroutines do it, and
// the loop goes on meanwhile. One (staleFlows) deletes connections; it asks View what was committed, not the ruleset.
// The other (affinityentries.Cleaner) has the loop commit the removal of entries, a few at a time, because only the
// loop's socket may write to owned tables.
//
// A package of this name may itself import the standard library's sync. Importers call it
// proxysync, so that a bare sync always is the standard one.
package sync
