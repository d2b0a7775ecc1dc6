package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// TestReadForeign changes our tables behind our back. Whatever it is comes out as something
// that differs from what we would write, or does nothing.
func TestReadForeign(t *testing.T) {
	set := &nft.Set{Name: "addresses", Key: []nft.Field{nft.FieldAddr}}
	for _, tt := range []struct {
		commands string
		differs  func(*nft.Table) bool
	}{
		{"add table ip kube-nft { flags dormant; }", func(t *nft.Table) bool {
			return t.Comment != nft.NewTable(nft.IP).Comment
		}},
		{"add set ip kube-nft odd { type mark; }", odd},
		{"add set ip kube-nft odd { type ipv4_addr; timeout 1h; }", odd},
		{"add set ip kube-nft odd { type ipv4_addr; flags timeout; }", odd},
		{"add set ip kube-nft odd { type ipv4_addr; flags constant; elements = { 1.2.3.4 }; }", odd},
		{"add set ip kube-nft odd { type ipv4_addr; flags dynamic; }", odd},
		{"add set ip kube-nft odd { type ipv4_addr; limit rate 1/second; }", odd},
		{"add set ip kube-nft odd { typeof ip length; }", odd},
		{"add set ip kube-nft odd { type ipv4_addr . mark; flags interval; }", odd},
		{"add map ip kube-nft odd { type ipv4_addr : mark; }", odd},
		{"add map ip kube-nft odd { type ipv4_addr : counter; }", odd},
		{"delete set ip kube-nft addresses; add set ip kube-nft addresses { type ipv4_addr; size 7; }",
			func(t *nft.Table) bool { return !t.Sets["addresses"].Set.Equal(set) }},
		{"delete set ip kube-nft addresses; add set ip kube-nft addresses { type ipv4_addr; flags interval; }",
			func(t *nft.Table) bool { return !t.Sets["addresses"].Set.Equal(set) }},
		{"delete set ip kube-nft addresses; add set ip kube-nft addresses { type ipv4_addr; counter; }",
			func(t *nft.Table) bool { return !t.Sets["addresses"].Set.Equal(set) }},
		{"add element ip kube-nft addresses { 1.2.3.4 }", func(t *nft.Table) bool {
			return len(t.Sets["addresses"].Map) == 1
		}},
		{"add chain ip kube-nft odd { type filter hook input priority 0; policy drop; }",
			func(t *nft.Table) bool { return t.Chains["odd"].Hook.Type == "filter (policy 0)" }},
		{"add chain ip kube-nft odd { type filter hook forward priority 3; }",
			func(t *nft.Table) bool {
				return *t.Chains["odd"].Hook == nft.Hook{Type: "filter", Point: "forward", Priority: 3}
			}},
		{"add counter ip kube-nft odd", same},
		{"add table inet kube-nft", same},
		{"add table ip other { chain c { drop; }; set s { type mark; }; }", same},
	} {
		t.Run(tt.commands, func(t *testing.T) {
			lab.New(t)
			k := lab.Open(t, Open)
			commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Table: nft.NewTable(nft.IP)},
				{Verb: nft.Add, Family: nft.IP, Set: set}}})
			lab.Run(t, tt.commands, "nft", "-f", "-")
			tables, _, err := k.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !tt.differs(tables[nft.IP]) {
				t.Errorf("not told from ours:\n%s", tables.Text())
			}
			if len(tables) != 1 {
				t.Errorf("%d tables, want one", len(tables))
			}
		})
	}
}

// odd reports whether the set "odd" is there and of no kind that Set describes.
func odd(t *nft.Table) bool { return len(t.Sets) == 2 && len(t.Sets["odd"].Set.Key) == 0 }

// same reports whether nothing was read but what we wrote.
func same(t *nft.Table) bool {
	return len(t.Sets) == 1 && len(t.Chains) == 0 && len(t.Sets["addresses"].Set.Key) == 1
}

func TestReadCancelled(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := k.Read(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Read: %v", err)
	}
	if err := k.Commit(ctx, nfttest.FrontendBatch(1, nft.Drop)); !errors.Is(err, context.Canceled) {
		t.Errorf("Commit: %v", err)
	}
	if _, err := k.Elements(ctx, nft.IP, &nfttest.FrontendSet); !errors.Is(err, context.Canceled) {
		t.Errorf("Elements: %v", err)
	}
	checkRead(t, k, nft.Tables{})
}

func TestElementsOfMissingSet(t *testing.T) {
	lab.New(t)
	_, err := lab.Open(t, Open).Elements(t.Context(), nft.IP, &nfttest.FrontendSet)
	const want = "read map ip kube-nft services: no such file or directory"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestReadUnderChange reads while another program commits without a pause.
func TestReadUnderChange(t *testing.T) {
	lab.New(t)
	reader, writer := lab.Open(t, Open), lab.Open(t, Open)
	tables := nfttest.SampleTables(7)
	commit(t, writer, change.Diff(nil, tables))
	stop, done := make(chan struct{}), make(chan error)
	go func() { done <- toggle(t, writer, stop) }()
	for range 20 {
		got, _, err := reader.Read(t.Context())
		if errors.Is(err, unix.EINTR) {
			continue // changed each time; said so
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := len(got[nft.IP].Sets["addresses"].Map); n != 0 && n != 7 {
			t.Errorf("%d elements: half of a change", n)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestReadBesideOthers reads while chains, sets and tables of others come and go, before and after ours in the
// kernel's lists: every reading is whole.
func TestReadBesideOthers(t *testing.T) {
	lab.New(t)
	lab.Run(t, "add table ip old", "nft", "-f", "-")
	k := lab.Open(t, Open)
	tables := nfttest.SampleTables(1)
	for f, table := range tables {
		for i := range 1500 {
			name := fmt.Sprintf("chain-%d", i)
			table.Chains[name] = &nft.Chain{Name: name, Rules: []nft.Rule{{nft.Drop}, {nft.PortIs{Port: uint16(i)}, nft.Drop}}}
		}
		table.Sets["many"] = &nft.Elements{Set: &nft.Set{Name: "many", Key: []nft.Field{nft.FieldAddr}},
			Map: make(map[string]nft.Element)}
		for i := range 20_000 {
			key := make([]byte, map[nft.Family]int{nft.IP: 4, nft.IP6: 16}[f])
			binary.BigEndian.PutUint32(key, uint32(i))
			table.Sets["many"].Map[string(key)] = nft.Element{}
		}
	}
	commit(t, k, change.Diff(nil, tables))
	lab.Start(t, "sh", "-c", `while :; do
		nft "add chain ip old a; add chain ip old b; add set ip old s { type ipv4_addr; }; add table ip6 young"
		nft "delete chain ip old a; delete chain ip old b; delete set ip old s; delete table ip6 young"
	done`)
	interrupted, began := 0, time.Now()
	for n := 0; n < 8 || interrupted == 0 && time.Since(began) < lab.Patience; n++ {
		before, err := k.Generation(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, after, err := k.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if before != after {
			interrupted++
		}
		if left := change.Diff(got, tables); !left.Empty() {
			t.Fatalf("%d operations are left to do, first: %s", len(left.Ops), left.Ops[0].Text())
		}
	}
	if interrupted == 0 {
		t.Error("the other client never committed during a reading")
	}
}

// toggle takes elements out and puts them back until it is told to stop.
func toggle(t *testing.T, k *Client, stop chan struct{}) error {
	all := change.Diff(nil, nfttest.SampleTables(7))
	add := nft.Batch{}
	for _, op := range all.Ops {
		if op.Elements != nil && op.Set.Name == "addresses" {
			add.Ops = append(add.Ops, op)
		}
	}
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		b := nft.Batch{Ops: append([]nft.Op(nil), add.Ops...)}
		for j := range b.Ops {
			if i%2 == 0 {
				b.Ops[j].Verb = nft.Delete
			}
		}
		if err := k.Commit(t.Context(), b); err != nil {
			return err
		}
	}
}

// TestLookupKernel finds every kind of element that a packet finds, and no other.
func TestLookupKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	b := nfttest.FrontendBatch(2, nft.Drop)
	prefixes := &nft.Set{Name: "prefixes", Key: []nft.Field{nft.FieldAddr}, Interval: true}
	from, to := "\x0a\x00\x00\x00", "\x0a\x00\xff\xff"
	b.Ops = append(b.Ops, nft.Op{Verb: nft.Add, Family: nft.IP, Set: prefixes},
		nft.Op{Verb: nft.Add, Family: nft.IP, Set: prefixes, Elements: []nft.KeyedElement{{Key: from + to}}})
	commit(t, k, b)
	for _, el := range nfttest.Frontends(2, nft.Drop) {
		if got, ok, err := k.Lookup(t.Context(), nft.IP, &nfttest.FrontendSet, el.Key); err != nil || !ok ||
			!got.Equal(el.Element) {
			t.Errorf("got %v, %v, %v, want %v", got, ok, err, el.Element)
		}
	}
	missing := nfttest.Frontends(3, nft.Drop)[2].Key
	if _, ok, err := k.Lookup(t.Context(), nft.IP, &nfttest.FrontendSet, missing); err != nil || ok {
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
