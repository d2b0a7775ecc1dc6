// Package affinity is the session affinity of Service ports: which chains it takes, which endpoints affinity
// entries may name, and which entries are wrong. It is pure: package services calls it, and package
// sync/affinityentries applies what it says of entries.
//
// New makes a Port from the facts about a Service port. UpdateChain and PolicyChain return its chains,
// MembersSet its elements, and Compare what a change from one Port to the next means:
//
//	port := affinity.New(facts, number)
//	chains := []*nft.Chain{port.UpdateChain(settings), port.PolicyChain(settings, policy, choices, ...)}
//	change := before.Compare(&port)
//	for _, endpoint := range change.Left {
//		departures.Begin(endpoint)
//	}
//
// Departures keeps the set of departed endpoints. Wrong says which entries of an affinity map have to change, and
// Ops how. docs/decisions has the reasons.
package affinity
