package wire

import "golang.org/x/sys/unix"

// Flags of tables (NFTA_TABLE_FLAGS). Source: linux/netfilter/nf_tables.h.
const (
	TableOwner   = 0x2 // NFT_TABLE_F_OWNER: the table goes with its socket, and no other process can change it
	TablePersist = 0x4 // NFT_TABLE_F_PERSIST: the table stays without its socket
)

// MessageType is the number of the first message of nf_tables; those of unix.NFT_MSG_… are added to it.
const MessageType = unix.NFNL_SUBSYS_NFTABLES << 8

// Numbers that x/sys does not have. Source: linux/netfilter/nf_tables.h.
const (
	attrTableUserdata   = 6    // NFTA_TABLE_USERDATA
	attrTableOwner      = 7    // NFTA_TABLE_OWNER
	attrSetExpr         = 17   // NFTA_SET_EXPR
	attrSetExpressions  = 18   // NFTA_SET_EXPRESSIONS
	attrSetCount        = 20   // NFTA_SET_COUNT
	attrDescConcat      = 2    // NFTA_SET_DESC_CONCAT
	attrFieldLen        = 1    // NFTA_SET_FIELD_LEN
	attrGenProcPID      = 2    // NFTA_GEN_PROC_PID
	attrGenProcName     = 3    // NFTA_GEN_PROC_NAME
	attrElemKeyEnd      = 10   // NFTA_SET_ELEM_KEY_END
	setFlagConcat       = 0x80 // NFT_SET_CONCAT
	flagsCreate         = unix.NLM_F_REQUEST | unix.NLM_F_CREATE
	flagsCreateAndQueue = flagsCreate | unix.NLM_F_APPEND
)

// hookNumbers are the numbers of enum nf_inet_hooks in linux/netfilter.h.
var hookNumbers = map[string]uint32{
	"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4,
}
