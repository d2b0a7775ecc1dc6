// Package nft holds the values of nf_tables: tables, sets, elements, chains, rules, and batches of operations. To make
// a table, start with NewTable and fill its Sets and Chains. A rule is a list of statements:
//
//	t := nft.NewTable(nft.IP)
//	t.Chains["in"] = &nft.Chain{
//		Name:  "in",
//		Hook:  &nft.Hook{Type: "nat", Point: "prerouting", Priority: -101},
//		Rules: []nft.Rule{{nft.InSet{Key: []nft.Part{nft.Source}, Set: "blocked"}, nft.Drop}},
//	}
//	text := nft.Tables{nft.IP: t}.Text() // as nft -f loads it
//	outcome := t.Trace(packet).Outcome   // what becomes of the first packet of a connection
//
// Package nft/change compares two tables and returns the batch of operations that turns one into the other. Package
// nft/kernel sends batches and reads tables. Package nft/services makes tables from Services.
//
// Each type of statement is in one file with its four methods: text writes it as nft does, expressions returns what the
// kernel evaluates, parse reads these expressions, and trace applies it to a packet.
//
// The package opens no socket, knows no Service and takes no context.
package nft
