// Package wire turns operations on our tables into netlink messages of nf_tables, and messages of the kernel into
// tables, chains, rules, sets and elements.
//
// To send a batch, encode it and write Buf to a socket in one system call. If the kernel refuses a message, OpError
// names the operation and the element:
//
//	var encoding wire.Encoding
//	err := encoding.Encode(&batch, wire.Ours, seq)
//	// write encoding.Buf; for an error with the sequence number n:
//	if i, ok := encoding.Index(n); ok {
//		return encoding.OpError(&batch, i, offset, errno)
//	}
//
// To read, pass the attributes of a message to the Decode function for its kind:
//
//	table, chain := wire.DecodeChain(attributes)
//
// An ElementDecoder collects the elements of one set from several messages.
//
// The decoders accept any bytes. What they do not understand becomes a value that is unlike all values that we write.
// The package opens no socket: package nft/kernel does.
package wire
