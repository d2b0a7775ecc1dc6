// Package affinity makes the chains and sets of session affinity, and says which affinity entries are wrong.
//
// Next makes a Port from the one before and the facts about a Service port. FollowChains and UpdateChain
// return its chains, Choose returns the rules of policies, and Lists has the endpoints that entries may name. Compare
// says what a change of a Port means:
//
//	port := before.Next(facts, number)
//	chains := append(port.FollowChains(family), port.UpdateChain(settings))
//	change := before.Compare(&port)
//
// Packets make affinity entries, not commits. When an endpoint leaves, entries that name it stay, and it takes long to
// find them in a large map. Until they are gone, the rules drop a connection that an entry leads there: the endpoint is
// no member of its list any more. Wrong says which entries of an affinity map have to change, and Ops returns the
// operations for that.
//
// The package opens no socket and knows no frontends. Package nft/services calls it. Package sync/affinityentries reads
// the affinity maps and removes the wrong entries. The reasons are in docs/decisions.
package affinity
