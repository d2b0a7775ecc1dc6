// Package wire turns operations on our tables into netlink messages of nf_tables, and messages of the kernel into
// tables, chains, rules, sets and elements. It opens no socket.
//
// To send a batch, call Encode of an Encoding with the scope Ours and send its Buf in one system call. For an answer,
// Index says which message it is about, and OpError names the operation and the element that the kernel refused.
//
// To read, call the Decode function for the kind of each message, with its attributes; an ElementDecoder
// collects the elements of one set from several messages. The decoders accept any bytes. What they do not understand
// becomes a value that equals nothing of ours.
package wire
