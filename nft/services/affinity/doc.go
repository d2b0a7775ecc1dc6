// Package affinity makes the chains and sets of session affinity, and says which affinity entries are wrong.
//
// New makes a Port from the facts about a Service port. UpdateChain and PolicyChain return its chains, MembersSet its
// elements. Compare says what a change from one Port to the next means:
//
//	port := affinity.New(facts, number)
//	chains := []*nft.Chain{port.UpdateChain(settings), port.PolicyChain(settings, policy, choices, ...)}
//	change := before.Compare(&port)
//	for _, endpoint := range change.Left {
//		departures.Begin(endpoint)
//	}
//
// Packets make affinity entries, not commits. When an endpoint leaves, entries that name it stay, and it takes long to
// find them in a large map. Until they are gone, Departures keeps the endpoint in the set of departed endpoints: the
// rules drop a connection that an entry leads there. Wrong says which entries of an affinity map have to change, and
// Ops returns the operations for that.
//
// The package opens no socket and knows no frontends. Package nft/services calls it. Package sync/affinityentries reads
// the affinity maps and removes the wrong entries. The reasons are in docs/decisions.
package affinity
