// Package layout is what things are called in our tables: the names of sets, maps and chains, the keys
// of elements, and the numbers that stand in both. What is written here is read back here:
// Policy.ChainName and PolicyOfChain, FrontendKeyOf and FrontendIn, Comment and ParsePortName stand
// side by side. Package services writes tables with it, package readback reads them.
//
// Others may rely on the names of the tables and on the maps services and node-ports.
package layout
