package nft

import (
	"bytes"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft/attr"
)

// TestSameAsMarshal: an expression has the bytes that the library gives it, whoever writes them.
func TestSameAsMarshal(t *testing.T) {
	value := []byte{1, 2, 3}
	for _, x := range []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, CsumType: expr.CsumTypeInet, CsumOffset: 10, CsumFlags: 1},
		&expr.Numgen{Register: 9, Modulus: 1, Type: unix.NFT_NG_RANDOM, Offset: 70000},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: value},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 2, Len: 3, Mask: value, Xor: []byte{4, 5, 6}},
		&expr.Immediate{Register: 2, Data: value},
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: "a-chain"},
		&expr.Verdict{Kind: expr.VerdictReturn},
		&expr.Lookup{SourceRegister: 1, SetName: "a-set"},
		&expr.Lookup{SetName: "a-set", SetID: 7, Invert: true},
		&expr.Lookup{SourceRegister: 1, SetName: "a-map", IsDestRegSet: true},
		&expr.Dynset{SrcRegKey: 1, SrcRegData: 2, SetName: "a-map", Operation: 1, Timeout: 10800e9},
		&expr.Dynset{SrcRegKey: 1, SetName: "a-set", SetID: 7, Operation: 2},
		&expr.Dynset{SrcRegKey: 1, SetName: "a-set", Invert: true},
		&expr.Dynset{SrcRegKey: 1, SetName: "a-set", Exprs: []expr.Any{&expr.Counter{}}},
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true},
		&expr.Ct{Key: expr.CtKeySRCIP, Register: 9},
		&expr.Ct{Key: expr.CtKeyDSTIP6, Register: 1, Direction: 1},
		&expr.Ct{Key: expr.CtKeyPROTODST, Register: 10},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2, Specified: true},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV6, RegAddrMin: 1},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV6, RegAddrMin: 1, RegAddrMax: 2, RegProtoMin: 3, RegProtoMax: 4},
		&expr.NAT{Type: expr.NATTypeDestNAT, RegAddrMin: 1, Random: true},
		&expr.NAT{Type: expr.NATTypeDestNAT},
		&expr.Masq{FullyRandom: true},
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
	} {
		marshaled, err := expr.Marshal(byte(IP), x)
		if err != nil {
			t.Fatal(err)
		}
		var got, want attr.Writer
		if err := appendExpression(&got, IP, x); err != nil {
			t.Fatal(err)
		}
		at := want.Open(unix.NFTA_LIST_ELEM)
		want.Buf = append(want.Buf, marshaled...)
		want.Pad()
		want.Close(at)
		if !bytes.Equal(got.Buf, want.Buf) {
			t.Errorf("%T %+v:\n got %x\nwant %x", x, x, got.Buf, want.Buf)
		}
	}
}
