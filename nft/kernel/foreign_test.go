package kernel

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"

	"github.com/kube-nft/kube-nft/nft/attr"
)

// deleteTable is the message that deletes a table of somebody else.
func deleteTable(f nft.Family, name string) nft.ForeignMessage {
	var w attr.Writer
	w.Buf = []byte{byte(f), unix.NFNETLINK_V0, 0, 0}
	w.Name(unix.NFTA_TABLE_NAME, name)
	return nft.ForeignMessage{Type: messageType | unix.NFT_MSG_DELTABLE, Flags: unix.NLM_F_REQUEST, Data: w.Buf}
}

// TestBesideKernel deletes tables of others in the transaction that makes ours.
func TestBesideKernel(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	lab.Run(t, "add table ip first\nadd table ip6 second\nadd table ip stays\n", "nft", "-f", "-")
	before, err := k.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := frontendBatch(1, nft.Drop)
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

// TestBesideRefusedKernel has one of the messages refused: nothing is done.
func TestBesideRefusedKernel(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	lab.Run(t, "add table ip first\n", "nft", "-f", "-")
	b := frontendBatch(1, nft.Drop)
	b.Foreign = []nft.ForeignMessage{deleteTable(nft.IP, "first"), deleteTable(nft.IP, "nowhere")}
	checkError(t, k.Commit(t.Context(), b), unix.ENOENT,
		"commit to nf_tables: message 2 of 2 about tables of others: no such file or directory; nothing was changed")
	if got := lab.Run(t, "", "nft", "list", "tables"); got != "table ip first\n" {
		t.Errorf("got\n%s", got)
	}
}

// TestLookupKernel finds every kind of element that a packet finds, and no other.
func TestLookupKernel(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	b := frontendBatch(2, nft.Drop)
	prefixes := &nft.Set{Name: "prefixes", Key: []nft.Field{nft.FieldAddr}, Interval: true}
	from, to := "\x0a\x00\x00\x00", "\x0a\x00\xff\xff"
	b.Ops = append(b.Ops, nft.Op{Verb: nft.Add, Family: nft.IP, Set: prefixes},
		nft.Op{Verb: nft.Add, Family: nft.IP, Set: prefixes, Elements: []nft.KeyedElement{{Key: from + to}}})
	commit(t, k, b)
	for _, el := range frontends(2, nft.Drop) {
		if got, ok, err := k.Lookup(t.Context(), nft.IP, &frontendSet, el.Key); err != nil || !ok || !got.Equal(el.Element) {
			t.Errorf("got %v, %v, %v, want %v", got, ok, err, el.Element)
		}
	}
	missing := frontends(3, nft.Drop)[2].Key
	if _, ok, err := k.Lookup(t.Context(), nft.IP, &frontendSet, missing); err != nil || ok {
		t.Errorf("a missing element: %v, %v", ok, err)
	}
	if _, ok, err := k.Lookup(t.Context(), nft.IP, prefixes, "\x0a\x00\x01\x02"); err != nil || !ok {
		t.Errorf("inside a range: %v, %v", ok, err)
	}
	if _, ok, err := k.Lookup(t.Context(), nft.IP, prefixes, "\x0b\x00\x01\x02"); err != nil || ok {
		t.Errorf("outside of it: %v, %v", ok, err)
	}
	_, _, err := k.Lookup(t.Context(), nft.IP, prefixes, "\x0a")
	if err == nil || !strings.HasPrefix(err.Error(), "look up an element of set ip kube-nft prefixes: invalid argument") {
		t.Errorf("a short key: %v", err)
	}
}
