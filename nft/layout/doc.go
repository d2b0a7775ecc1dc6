// Package layout holds the names in our tables: of sets, maps and chains, of the keys of elements, and of the numbers
// in both. For each name there is a function that writes it and one that reads it:
//
//	chain := policy.ChainName()                  // "external-3"
//	policy, ok := layout.PolicyOfChain(chain)
//	key := layout.FrontendKeyOf(frontend)
//	frontend := layout.FrontendIn(nft.IP, layout.ServicesMap, key)
//	comment := layout.Comment(id)                // "shop/web:http/tcp"
//
// Package nft/services writes tables with these functions. Package nft/readback reads them.
//
// Other programs may rely on the names of the tables, and on the maps services and node-ports.
package layout
