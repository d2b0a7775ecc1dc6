package kernel

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// TestErrorNamesElement puts one bad element into the middle of a batch of 70,000.
func TestErrorNamesElement(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	b := nfttest.FrontendBatch(70000, nft.Goto("other"))
	bad := &b.Ops[3].Elements[35000]
	bad.Verdict = &nft.Verdict{Kind: nft.VerdictGoto, Chain: "nowhere"}
	checkError(t, k.Commit(t.Context(), b), unix.ENOENT,
		`table ip kube-nft: add element services { 10.0.136.184 . tcp . 80 comment "shop/cart-35000:http" : goto nowhere }`+
			` (shop/cart-35000:http): no such file or directory; nothing was changed`)
	checkRead(t, k, nft.Tables{})

	bad.Verdict = &nft.Verdict{Kind: nft.VerdictGoto, Chain: "other"}
	commit(t, k, b)
	again := nfttest.Frontends(70000, nft.Goto("other"))
	again[69999].Verdict = &nft.Drop
	checkError(t,
		k.Commit(t.Context(),
			nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Set: &nfttest.FrontendSet, Elements: again}}}), unix.EEXIST,
		`table ip kube-nft: add element services { 10.1.17.111 . tcp . 80 comment "shop/cart-69999:http" : drop }`+
			` (shop/cart-69999:http): file exists; nothing was changed`)

	again[100].Key = "\x01\x02\x03\x04\x06\x00\x00\x00\x00\x50\x00\x00"
	again[100].Comment = ""
	checkError(t,
		k.Commit(t.Context(),
			nft.Batch{Ops: []nft.Op{{Verb: nft.Delete, Family: nft.IP, Set: &nfttest.FrontendSet, Elements: again[:1000]}}}),
		unix.ENOENT,
		`table ip kube-nft: delete element services { 1.2.3.4 . tcp . 80 }: no such file or directory; nothing was changed`)
}

// checkError compares the errno and the whole text.
func checkError(t *testing.T, err error, errno unix.Errno, text string) {
	t.Helper()
	if !errors.Is(err, errno) {
		t.Fatalf("got %v, want %v", err, errno)
	}
	if err.Error() != text {
		t.Errorf("got  %s\nwant %s", err, text)
	}
}

// TestErrorNamesRange does the same in sets of ranges, whose elements are sent in two parts.
func TestErrorNamesRange(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	set := &nft.Set{Name: "prefixes", Key: []nft.Field{nft.FieldAddr}, Interval: true}
	ranges := make([]nft.KeyedElement, 1000)
	for i := range ranges {
		first := binary.BigEndian.AppendUint32(nil, 10<<24+uint32(i)<<8)
		ranges[i].Key = string(first) + string(first[:3]) + "\x7f"
	}
	definition := []nft.Op{{Verb: nft.Add, Family: nft.IP, Table: nft.NewTable(nft.IP)},
		{Verb: nft.Add, Family: nft.IP, Set: set}}
	commit(t, k, nft.Batch{Ops: append(definition, nft.Op{Verb: nft.Add, Family: nft.IP, Set: set, Elements: ranges})})
	ranges[500].Key = "\x0a\x00\x05\x00\x0a\x00\x06\xff"
	checkError(t,
		k.Commit(t.Context(), nft.Batch{Ops: []nft.Op{{Verb: nft.Delete, Family: nft.IP, Set: set, Elements: ranges}}}),
		unix.ENOENT,
		"table ip kube-nft: delete element prefixes { 10.0.5.0-10.0.6.255 }: no such file or directory; nothing was changed")
}

func TestErrorNamesOperation(t *testing.T) {
	set := &nft.Set{Name: "addresses", Key: []nft.Field{nft.FieldAddr}}
	for _, tt := range []struct {
		op    nft.Op
		errno unix.Errno
		text  string
	}{
		{nft.Op{Verb: nft.Delete, Family: nft.IP, Set: set}, unix.ENOENT, "delete set addresses: no such file or directory"},
		{nft.Op{Verb: nft.Delete, Family: nft.IP, Chain: &nft.Chain{Name: "nowhere"}}, unix.ENOENT,
			"delete chain nowhere: no such file or directory"},
		{nft.Op{Verb: nft.Flush, Family: nft.IP, Chain: &nft.Chain{Name: "nowhere"}}, unix.ENOENT,
			"flush chain nowhere: no such file or directory"},
		{nft.Op{Verb: nft.Add, Family: nft.IP,
			Chain: &nft.Chain{Name: "base", Hook: &nft.Hook{Type: "nat", Point: "forward", Priority: 0}}}, unix.EOPNOTSUPP,
			"add chain base { type nat hook forward priority filter; policy accept; } (base chains): operation not supported"},
		{nft.Op{Verb: nft.Add, Family: nft.IP, Chain: &nft.Chain{Name: "other"},
			Rules: []nft.Rule{{nft.Drop}, {nft.Translated{}, nft.InSet{Key: []nft.Part{nft.Source}, Set: "addresses"}}}},
			unix.ENOENT, "add rule other ct status dnat ip saddr @addresses: no such file or directory"},
		{nft.Op{Verb: nft.Add, Family: nft.IP, Set: &nft.Set{Name: "services", Key: set.Key, Data: set.Key}}, unix.EEXIST,
			"add map services { type ipv4_addr : ipv4_addr; }: file exists"},
	} {
		t.Run(tt.op.Text(), func(t *testing.T) {
			lab.New(t)
			b := nfttest.FrontendBatch(10, nft.Drop)
			b.Ops = append(b.Ops, tt.op)
			k := lab.Open(t, Open)
			if tt.errno == unix.EEXIST && !comparesSets(t, k) {
				t.Skip("this kernel adds a set that exists with another type, and changes nothing, as all before 6.2")
			}
			checkError(t, k.Commit(t.Context(), b), tt.errno, "table ip kube-nft: "+tt.text+"; nothing was changed")
			checkRead(t, k, nft.Tables{})
		})
	}
}

// comparesSets reports whether the kernel refuses to add a set that exists with another type. It leaves no table.
func comparesSets(t *testing.T, k *Client) bool {
	t.Helper()
	table := nft.NewTable(nft.IP)
	b := nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Table: table}}}
	for _, field := range []nft.Field{nft.FieldAddr, nft.FieldPort} {
		b.Ops = append(b.Ops, nft.Op{Verb: nft.Add, Family: nft.IP, Set: &nft.Set{Name: "twice", Key: []nft.Field{field}}})
	}
	err := k.Commit(t.Context(), b)
	if err == nil {
		commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Delete, Family: nft.IP, Table: table}}})
	}
	return err != nil
}

func TestStaleGeneration(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	_, generation, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := nfttest.FrontendBatch(3, nft.Drop)
	b.Generation = generation
	commit(t, k, b)
	checkError(t, k.Commit(t.Context(), b), unix.ERESTART,
		"commit to nf_tables: interrupted system call should be restarted (another program changed nf_tables since it was "+
			"read); nothing was changed")
}

func TestBatchErrorText(t *testing.T) {
	for text, err := range map[string]*BatchError{
		"commit to nf_tables: message too long (a batch of 7000000 bytes; raise net.core.wmem_max or run with " +
			"CAP_NET_ADMIN in the initial user namespace); nothing was changed": {7000000, unix.EMSGSIZE},
		"commit to nf_tables: operation not permitted (needs CAP_NET_ADMIN); nothing was " +
			"changed": {100, unix.EPERM},
		"commit to nf_tables: operation not supported (this kernel has no nf_tables: it needs CONFIG_NF_TABLES); nothing " +
			"was changed": {100, unix.EOPNOTSUPP},
		"commit to nf_tables: cannot allocate memory; nothing was changed": {100, unix.ENOMEM},
	} {
		if err.Error() != text {
			t.Errorf("got  %s\nwant %s", err, text)
		}
	}
}
