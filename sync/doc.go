// Package sync keeps the kernel's tables equal to what the tracker says.
//
// One goroutine, Loop.Run, owns the wanted ruleset and the knowledge of what the kernel
// holds. It wakes up when the tracker has something new, compiles what changed, computes
// the difference and commits it as one netlink batch. Start, steady state, retry and repair
// are one path: they differ only in whether the applied state is known or has to be read
// from the kernel first. Nothing is written before all sources have synced, and nothing is
// removed when the loop ends.
//
// What others do to the tables is undone as soon as it is heard of, and Service ports that the
// kernel refuses are left out: see Loop.Watch and Options.Refused.
//
// A package of this name may itself import the standard library's sync. Importers call it
// proxysync, so that a bare sync always is the standard one.
package sync
