package legacy

import (
	"context"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// Where firewalld decides about forwarded packets.
const (
	firewalldTable = "firewalld"
	firewalldChain = "filter_FORWARD"
)

// ctStatusDNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const ctStatusDNAT = 1 << 5

// FirewalldRefuses reports whether the rules of firewalld, as they are in the kernel, refuse
// forwarded packets that others have translated, unless one of its policies accepts them. firewalld
// has a rule that accepts them unless it is set to StrictForwardPorts. Its configuration may say
// something else than what it has programmed, and a container does not see it.
func FirewalldRefuses(ctx context.Context) (bool, error) {
	k, err := kernel.Open()
	if err != nil {
		return false, err
	}
	defer k.Close()
	refuses, accepts := false, false
	err = k.Dump(ctx, unix.NFT_MSG_GETRULE, nft.Family(unix.NFPROTO_INET), func(which *attr.Writer) {
		which.Name(unix.NFTA_RULE_TABLE, firewalldTable)
		which.Name(unix.NFTA_RULE_CHAIN, firewalldChain)
	}, func(r attr.Reply) {
		// Kernels that do not know the filter list all rules of the table.
		if b := r.Attributes(); attr.Name(attr.Find(b, unix.NFTA_RULE_TABLE)) == firewalldTable &&
			attr.Name(attr.Find(b, unix.NFTA_RULE_CHAIN)) == firewalldChain {
			a, d := verdictOnTranslated(attr.Find(b, unix.NFTA_RULE_EXPRESSIONS))
			accepts, refuses = accepts || a && !refuses, refuses || d
		}
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return refuses && !accepts, err
}

// verdictOnTranslated reports whether a rule accepts packets that another program has translated, whatever else
// they are, and whether it refuses every packet.
func verdictOnTranslated(expressions []byte) (accepts, refuses bool) {
	var dnat, others, accept, refuse bool
	for list := attr.NewReader(expressions); list.Next(); {
		data := attr.Find(list.Value, unix.NFTA_EXPR_DATA)
		switch attr.Name(attr.Find(list.Value, unix.NFTA_EXPR_NAME)) {
		case "counter", "log":
		case "ct":
			if key := attr.Find(data, unix.NFTA_CT_KEY); attr.Uint32(key) != unix.NFT_CT_STATUS || len(key) != 4 {
				others = true
			}
		case "bitwise": // of the status, which is in the kernel's order
			mask := attr.Find(attr.Find(data, unix.NFTA_BITWISE_MASK), unix.NFTA_DATA_VALUE)
			dnat = len(mask) == 4 && binary.NativeEndian.Uint32(mask)&ctStatusDNAT != 0
		case "cmp":
			others = others || !dnat
		case "reject":
			refuse = true
		case "immediate":
			verdict := attr.Find(attr.Find(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
			switch code := attr.Find(verdict, unix.NFTA_VERDICT_CODE); {
			case len(code) != 4:
			case attr.Uint32(code) == 1: // NF_ACCEPT
				accept = true
			case attr.Uint32(code) == verdictDrop:
				refuse = true
			}
		default:
			others = true
		}
	}
	return dnat && accept && !others, refuse && !dnat && !others
}
