package kernel

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

func commit(t testing.TB, k *Client, b nft.Batch) {
	t.Helper()
	if err := k.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// checkTriangle holds tables against the kernel: our batch lists as our text, and our text
// loaded by nft lists as itself, and nft loads it again over itself.
func checkTriangle(t *testing.T, k *Client, tables nft.Tables) {
	t.Helper()
	want := tables.Text()
	commit(t, k, change.Diff(nil, tables))
	if diff := cmp.Diff(lines(want), lines(lab.Listing(t, want))); diff != "" {
		t.Errorf("after our batch (-want +got):\n%s", diff)
	}
	lab.Run(t, "flush ruleset\n"+want, "nft", "-f", "-")
	if diff := cmp.Diff(lines(want), lines(lab.Listing(t, want))); diff != "" {
		t.Errorf("after our text (-want +got):\n%s", diff)
	}
	lab.Run(t, want, "nft", "-f", "-") // a saved listing loads over the tables that it was made of
}

func lines(s string) []string { return strings.Split(s, "\n") }

func TestStatementsInKernel(t *testing.T) {
	lab.New(t)
	checkTriangle(t, lab.Open(t, Open), nfttest.StatementTables())
}

// TestRuleEqualInKernel compares rules as nft wrote them with ours.
func TestRuleEqualInKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	tables := nfttest.StatementTables()
	lab.Run(t, tables.Text(), "nft", "-f", "-")
	checkRead(t, k, tables)
	for _, odd := range []struct{ command, chain string }{
		{"add rule ip kube-nft other counter", "other"},
		{"insert rule ip kube-nft after drop", "after"},
		{"add rule ip kube-nft before ip saddr 10.244.0.0/17", "before"},
		{"add rule ip kube-nft before dnat to 10.0.0.1", "before"},
	} {
		lab.Run(t, "", "nft", odd.command)
		got, _, err := k.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		have, want := got[nft.IP].Chains[odd.chain], tables[nft.IP].Chains[odd.chain]
		if len(have.Rules) != len(want.Rules)+1 {
			t.Errorf("after %q: %d rules, want one more than %d", odd.command, len(have.Rules), len(want.Rules))
		}
		commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Flush, Family: nft.IP, Chain: want}}})
		if len(want.Rules) > 0 {
			commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Chain: want, Rules: want.Rules}}})
		}
		checkRead(t, k, tables)
	}
}

// TestTooLong keeps the send buffer as small as the system makes it.
func TestTooLong(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	k.sent = 1 << 30
	err := k.Commit(t.Context(), nfttest.FrontendBatch(20000, nft.Drop))
	if !isTooLong(err) {
		t.Errorf("got %v, want %v", err, unix.EMSGSIZE)
	}
	checkRead(t, k, nft.Tables{})
}

// TestWithoutCapability drops CAP_NET_ADMIN on the test's thread, which ends with the test.
func TestWithoutCapability(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	dropNetAdmin(t)
	checkError(t, k.Commit(t.Context(), nfttest.FrontendBatch(1, nft.Drop)), unix.EPERM,
		"commit to nf_tables: operation not permitted (needs CAP_NET_ADMIN); nothing was changed")
	_, _, err := k.Read(t.Context())
	checkError(t, err, unix.EPERM, "read nf_tables: operation not permitted (needs CAP_NET_ADMIN)")
	_, err = k.Probe(t.Context())
	checkError(t, err, unix.EPERM,
		"probe nf_tables: commit to nf_tables: operation not permitted (needs CAP_NET_ADMIN); nothing was changed")
}

func dropNetAdmin(t *testing.T) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
}

// TestRefusalAfterFirstPhaseChangesNothing has the kernel refuse what follows the first phase: nothing is changed.
func TestRefusalAfterFirstPhaseChangesNothing(t *testing.T) {
	lab.New(t)
	k, r := lab.Open(t, Open), newRuleset(0)
	commit(t, k, change.Diff(nil, r.Want()))
	chain := &nft.Chain{Name: "new", Rules: []nft.Rule{{nft.Drop}}}
	refused := nft.Batch{Ops: []nft.Op{
		{Verb: nft.Add, Family: nft.IP, Chain: chain},
		{Verb: nft.Add, Family: nft.IP, Chain: chain, Rules: chain.Rules},
		{Verb: nft.Delete, Family: nft.IP, Set: &nft.Set{Name: "cluster-ips", Key: []nft.Field{nft.FieldAddr}},
			Elements: []nft.KeyedElement{{Key: "\x0a\x60\x00\x0a"}}},
	}}
	if err := k.Commit(t.Context(), refused); !errors.Is(err, unix.ENOENT) {
		t.Fatalf("deleting an element that does not exist: %v", err)
	}
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if left := change.Diff(tables, r.Want()); !left.Empty() {
		t.Errorf("a refused batch left behind what takes %d operations, first: %s", len(left.Ops), left.Ops[0].Text())
	}
}

// TestRefusalOfLastPhase: Commit says that the tables have to be read if the kernel refuses what goes last.
func TestRefusalOfLastPhase(t *testing.T) {
	lab.New(t)
	k, r := lab.Open(t, Open), newRuleset(0)
	commit(t, k, change.Diff(nil, r.Want()))
	endpoints := r.Want()[nft.IP].Sets["endpoints-tcp"].Set
	refused := nft.Batch{Ops: []nft.Op{
		{Verb: nft.Add, Family: nft.IP, Chain: &nft.Chain{Name: "new"}},
		{Verb: nft.Delete, Family: nft.IP, Set: endpoints,
			Elements: []nft.KeyedElement{{Key: string(make([]byte, endpoints.KeyLen(nft.IP)))}}},
	}}
	err := k.Commit(t.Context(), refused)
	if !errors.Is(err, ErrUnknownOutcome) || errors.As(err, new(*OpError)) ||
		!strings.Contains(err.Error(), "endpoints-tcp") {
		t.Fatalf("deleting an element that does not exist: %v", err)
	}
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if tables[nft.IP].Chains["new"] == nil {
		t.Error("the phases before the last are not there")
	}
}

// TestDestroyInKernel deletes entries of an affinity map that are there and that are not,
// with the kernel's own verb and without it.
func TestDestroyInKernel(t *testing.T) {
	for name, destroys := range map[string]bool{"native": true, "emulated": false} {
		t.Run(name, func(t *testing.T) {
			lab.New(t)
			k := lab.Open(t, Open)
			if _, err := k.Probe(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !k.destroys && destroys {
				t.Skip("this kernel does not know the verb")
			}
			k.destroys = destroys
			set := &nft.Set{Name: "affinity-test-8080", Key: []nft.Field{nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr},
				Dynamic: true, Size: 1024}
			entry := func(client, endpoint byte) nft.KeyedElement {
				return nft.KeyedElement{Key: string([]byte{10, 0, 0, client}),
					Element: nft.Element{Data: string([]byte{10, 244, 0, endpoint}), Life: &nft.Life{Timeout: time.Hour}}}
			}
			commit(t, k, nft.Batch{Ops: []nft.Op{
				{Verb: nft.Add, Family: nft.IP, Table: nft.NewTable(nft.IP)},
				{Verb: nft.Add, Family: nft.IP, Set: set},
				{Verb: nft.Add, Family: nft.IP, Set: set, Elements: []nft.KeyedElement{entry(1, 1), entry(2, 2)}},
			}})
			commit(t, k,
				nft.Batch{
					Ops: []nft.Op{{Verb: nft.Destroy, Family: nft.IP, Set: set,
						Elements: []nft.KeyedElement{entry(1, 1), entry(3, 3)}}},
				})
			left, err := k.Elements(t.Context(), nft.IP, set)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := left[entry(2, 2).Key]; !ok || len(left) != 1 {
				t.Errorf("left are %v, want the entry of client 2 alone", left)
			}
		})
	}
}
