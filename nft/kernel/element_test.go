package kernel

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// TestElementsInKernel holds order, line breaks, comments and data of elements of every kind
// of set against nft's listing, and what the kernel reads back against what was written.
func TestElementsInKernel(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			lab.New(t)
			k := lab.Open(t, Open)
			tables := nfttest.SampleTables(n)
			checkTriangle(t, k, tables)
			checkRead(t, k, tables) // as nft has written it
			lab.Run(t, "", "nft", "flush", "ruleset")
			commit(t, k, change.Diff(nil, tables))
			checkRead(t, k, tables) // as we have
		})
	}
}

// checkRead reads the tables back and compares them with what they should be.
func checkRead(t *testing.T, k *Client, want nft.Tables) {
	t.Helper()
	got, generation, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if now, err := k.Generation(t.Context()); err != nil || now != generation {
		t.Errorf("generation %d, now %d (%v)", generation, now, err)
	}
	sameRules := cmp.Options{
		cmp.Comparer(func(a, b nft.Rule) bool { return a.Equal(nft.IP, b) || a.Equal(nft.IP6, b) }),
		cmp.Comparer(nft.Element.Equal),
	}
	if diff := cmp.Diff(want, got, sameRules); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestReadStatements(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	checkRead(t, k, nft.Tables{})
	commit(t, k, change.Diff(nil, nfttest.StatementTables()))
	checkRead(t, k, nfttest.StatementTables())
}

// TestRangesInKernel holds single-field ranges against nft: at both ends of the address
// space, touching, and of lengths that are no prefix.
func TestRangesInKernel(t *testing.T) {
	for _, ranges := range []map[nft.Family][]string{
		{nft.IP: {"0.0.0.0-255.255.255.255"}, nft.IP6: {"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}},
		{nft.IP: {"0.0.0.0-0.0.0.0", "224.0.0.0-255.255.255.255"},
			nft.IP6: {"::-::", "ff00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}},
		{nft.IP: {"10.0.0.0-10.0.0.255", "10.0.1.0-10.0.1.255", "10.0.3.4-10.0.3.7", "10.0.3.9-10.0.3.12"},
			nft.IP6: {"fd00::-fd00::ff", "fd00::100-fd00::1ff", "fd00::fff4-fd00::fff5"}},
	} {
		t.Run(ranges[nft.IP][0], func(t *testing.T) {
			lab.New(t)
			k := lab.Open(t, Open)
			tables := make(nft.Tables)
			for _, f := range nft.Families {
				tables[f] = rangeTable(f, ranges[f])
			}
			checkTriangle(t, k, tables)
			checkRead(t, k, tables)
			commit(t, k, deletion(tables))
			for _, table := range tables {
				table.Sets["prefixes"].Map = map[string]nft.Element{}
			}
			checkRead(t, k, tables)
		})
	}
}

func rangeTable(f nft.Family, ranges []string) *nft.Table {
	t := nft.NewTable(f)
	elements := &nft.Elements{Set: &nft.Set{Name: "prefixes", Key: []nft.Field{nft.FieldAddr}, Interval: true},
		Map: map[string]nft.Element{}}
	for _, r := range ranges {
		first, last, _ := strings.Cut(r, "-")
		elements.Map[nft.AddrKey(netip.MustParseAddr(first))+nft.AddrKey(netip.MustParseAddr(last))] = nft.Element{}
	}
	t.Sets["prefixes"] = elements
	return t
}

// deletion is the batch that takes all elements out.
func deletion(tables nft.Tables) (b nft.Batch) {
	for _, op := range change.Diff(nil, tables).Ops {
		if op.Elements != nil {
			op.Verb = nft.Delete
			b.Ops = append(b.Ops, op)
		}
	}
	return b
}

func TestDeleteElementsInKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	commit(t, k, change.Diff(nil, nfttest.SampleTables(7)))
	commit(t, k, deletion(nfttest.SampleTables(7)))
	checkRead(t, k, nfttest.SampleTables(0))
}

func TestElementsThatExpire(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	set := &nft.Set{Name: "affinity-x-8080", Key: []nft.Field{nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr},
		Dynamic: true, Size: 65536}
	commit(t, k, nft.Batch{Ops: []nft.Op{
		{Verb: nft.Add, Family: nft.IP, Table: nft.NewTable(nft.IP)},
		{Verb: nft.Add, Family: nft.IP, Set: set},
		{Verb: nft.Add, Family: nft.IP, Set: set, Elements: []nft.KeyedElement{
			{Key: "\x0a\x00\x00\x01", Element: nft.Element{Data: "\x0a\x00\x00\x02",
				Life: &nft.Life{Timeout: 3 * time.Hour, Expires: time.Hour}}},
			{Key: "\x0a\x00\x00\x02", Element: nft.Element{Data: "\x0a\x00\x00\x02", Life: &nft.Life{Timeout: 3 * time.Hour}}},
		}},
	}})
	got, err := k.Elements(t.Context(), nft.IP, set)
	if err != nil {
		t.Fatal(err)
	}
	for key, atMost := range map[string]time.Duration{"\x0a\x00\x00\x01": time.Hour, "\x0a\x00\x00\x02": 3 * time.Hour} {
		el := got[key]
		if el.Data != "\x0a\x00\x00\x02" || el.Life == nil {
			t.Fatalf("%q: got %+v", key, el)
		}
		if el.Life.Timeout != 3*time.Hour || el.Life.Expires > atMost || el.Life.Expires < atMost-time.Minute {
			t.Errorf("%q: lives %v of %v, want about %v", key, el.Life.Expires, el.Life.Timeout, atMost)
		}
	}
}

// TestElementsDuringFloodInKernel reads a map while thousands of clients come each second: it has all elements of
// before.
func TestElementsDuringFloodInKernel(t *testing.T) {
	lab.New(t)
	k, other := lab.Open(t, Open), lab.Open(t, Open)
	set := &nft.Set{Name: "affinity-0", Key: nft.NumberedFields(nft.IP), Data: []nft.Field{nft.FieldAddr}, Dynamic: true,
		Size: 262144}
	const before = 20_000
	add := func(k *Client, first, n int) {
		op := nft.Op{Verb: nft.Add, Family: nft.IP, Set: set}
		for _, client := range lab.Addresses(lab.After(netip.MustParseAddr("20.0.0.0"), first), n) {
			op.Elements = append(op.Elements, nft.KeyedElement{Key: nft.NumberedKey(nft.IP, 2, client), Element: nft.Element{
				Data: nft.AddrKey(client), Life: &nft.Life{Timeout: time.Hour, Expires: time.Hour}}})
		}
		commit(t, k, nft.Batch{Ops: []nft.Op{op}})
	}
	commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Table: nft.NewTable(nft.IP)},
		{Verb: nft.Add, Family: nft.IP, Set: set}}})
	add(k, 0, before)
	stop, done := make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		for i := range 5000 {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				add(other, before+i*30, 30)
			}
		}
	}()
	for range 4 {
		got, err := k.Elements(t.Context(), nft.IP, set)
		missing := 0
		for _, client := range lab.Addresses(netip.MustParseAddr("20.0.0.0"), before) {
			if _, found := got[nft.NumberedKey(nft.IP, 2, client)]; !found {
				missing++
			}
		}
		if err != nil || missing > 0 {
			t.Errorf("%d elements, %d of the first %d are missing: %v", len(got), missing, before, err)
		}
	}
	close(stop)
	<-done
}
