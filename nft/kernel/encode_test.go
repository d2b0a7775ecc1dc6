package kernel

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/nfttest"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// deleteTable is the message that deletes a table of another program.
func deleteTable(f nft.Family, name string) nft.ForeignMessage {
	var w attr.Writer
	w.Buf = []byte{byte(f), unix.NFNETLINK_V0, 0, 0}
	w.Name(unix.NFTA_TABLE_NAME, name)
	return nft.ForeignMessage{Type: wire.MessageType | unix.NFT_MSG_DELTABLE, Flags: unix.NLM_F_REQUEST, Data: w.Buf}
}

// TestForeignKernel deletes tables of others in the transaction that makes ours.
func TestForeignKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	lab.Run(t, "add table ip first\nadd table ip6 second\nadd table ip stays\n", "nft", "-f", "-")
	before, err := k.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := nfttest.FrontendBatch(1, nft.Drop)
	b.Foreign = []nft.ForeignMessage{deleteTable(nft.IP, "first"), deleteTable(nft.IP6, "second")}
	commit(t, k, b)
	if after, err := k.Generation(t.Context()); err != nil || after != before+1 {
		t.Errorf("generation %d after %d (%v): not one transaction", after, before, err)
	}
	want := "table ip stays\ntable ip kube-nft\n"
	if got := lab.Run(t, "", "nft", "list", "tables"); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	commit(t, k, nft.Batch{Foreign: []nft.ForeignMessage{deleteTable(nft.IP, "stays")}})
}

// TestForeignRefusedKernel has one of the messages refused: nothing is done.
func TestForeignRefusedKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	lab.Run(t, "add table ip first\n", "nft", "-f", "-")
	b := nfttest.FrontendBatch(1, nft.Drop)
	b.Foreign = []nft.ForeignMessage{deleteTable(nft.IP, "first"), deleteTable(nft.IP, "nowhere")}
	checkError(t, k.Commit(t.Context(), b), unix.ENOENT,
		"commit to nf_tables: message 2 of 2 about tables of others: no such file or directory; nothing was changed")
	if got := lab.Run(t, "", "nft", "list", "tables"); got != "table ip first\n" {
		t.Errorf("got\n%s", got)
	}
}
