// Package sync keeps the kernel's tables equal to what the tracker says. Make a Loop with New, add what it is to do
// besides with CleanFlows, CleanAffinity and Watch, and start its Run.
//
// The goroutine of Loop.Run owns the wanted ruleset and the knowledge of what the kernel
// holds. It compiles what changed, computes the difference and commits it as one netlink
// batch. Start, steady state, retry and repair are one path: they differ only in whether the
// applied state is known or has to be read from the kernel first.
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
// After each commit the loop hands over what it made stale among affinity entries and among
// connections, and reports. Two other goroutines look for these: one (staleFlows) removes
// connections; it asks what was committed (View), not the ruleset, so that the loop goes on
// meanwhile. The other (affinityentries.Cleaner) has the loop commit the removal of entries, a few at a
// time, because the tables may belong to its socket. A commit that fails changes
// nothing: the rules stay as they were. Nothing is written before all sources have synced, and
// nothing is removed when the loop ends. The safety check stops the first commit (SafetyError) if it would empty
// tables that serve, or if a takeover from kube-proxy would lose Services; then the loop stays
// UNKNOWN and checks again.
//
// A package of this name may itself import the standard library's sync. Importers call it
// proxysync, so that a bare sync always is the standard one.
package sync
