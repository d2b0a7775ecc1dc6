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
// Departures keeps the set of departed endpoints. Wrong says which entries of an affinity map have to change, and Ops
// returns the operations for that.
//
// The package opens no socket and knows no frontends. Package nft/services calls it. Package sync/affinityentries reads
// the affinity maps and removes the wrong entries. The reasons are in docs/decisions.
package affinity
