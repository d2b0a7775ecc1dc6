// Package lists writes endpoint lists into a table, and makes the chains that choose an endpoint from them.
//
// Arrange says which endpoint stands under which index. A Writer writes the elements in which two lists differ. The
// chains of a Balance choose from all lists of one capacity:
//
//	places := lists.Arrange(before, shown, port, false, lists.Method{})
//	writer.Write(set, key, comment, before, places)
//	chains := lists.Balance{Capacity: places.Capacity()}.Chains()
//
// All frontends of a Service port may share lists (NewShared, SetShared), and so may several ports of a Service whose
// endpoints have one port (NewJoint, SetJoint, SetTargets). The Writer makes the maps and chains of such lists. A long
// slot table is written in parts: call Advance before each commit and Committed after it.
//
// A change moves few endpoints: those that stay keep their index. Only slots follow from the endpoints alone, because
// all nodes must agree on them (package maglev).
//
// The package knows no frontends. Package nft/services decides which lists a Service port has. The reasons are in
// docs/decisions.
package lists
