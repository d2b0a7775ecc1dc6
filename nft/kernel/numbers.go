package kernel

import "golang.org/x/sys/unix"

// Numbers that x/sys does not have. Source: linux/netfilter/nf_tables.h.
const (
	attrTableUserdata   = 6    // NFTA_TABLE_USERDATA
	attrTableOwner      = 7    // NFTA_TABLE_OWNER
	attrSetExpr         = 17   // NFTA_SET_EXPR
	attrSetExpressions  = 18   // NFTA_SET_EXPRESSIONS
	attrSetCount        = 20   // NFTA_SET_COUNT
	attrDescConcat      = 2    // NFTA_SET_DESC_CONCAT
	attrFieldLen        = 1    // NFTA_SET_FIELD_LEN
	attrElemKeyEnd      = 10   // NFTA_SET_ELEM_KEY_END
	setFlagConcat       = 0x80 // NFT_SET_CONCAT
	tableFlagOwner      = 0x2  // NFT_TABLE_F_OWNER
	tableFlagPersist    = 0x4  // NFT_TABLE_F_PERSIST
	messageType         = unix.NFNL_SUBSYS_NFTABLES << 8
	messageBatchBegin   = unix.NFNL_MSG_BATCH_BEGIN
	messageBatchEnd     = unix.NFNL_MSG_BATCH_END
	subsystemNFTables   = unix.NFNL_SUBSYS_NFTABLES
	flagsCreate         = unix.NLM_F_REQUEST | unix.NLM_F_CREATE
	flagsCreateAndQueue = flagsCreate | unix.NLM_F_APPEND
)

// hookNumbers are the numbers of enum nf_inet_hooks in linux/netfilter.h.
var hookNumbers = map[string]uint32{
	"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4,
}
