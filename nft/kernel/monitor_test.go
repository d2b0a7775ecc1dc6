package kernel

import (
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/nfttest"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// joined returns a monitor that listens to all but k.
func joined(t testing.TB, k *Client) *Monitor {
	t.Helper()
	m, err := NewMonitor(k)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := m.Join(); err != nil {
		t.Fatal(err)
	}
	return m
}

// nextChange returns the next change of our tables.
func nextChange(t testing.TB, m *Monitor) *change.ForeignChange {
	t.Helper()
	for {
		change, err := m.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !change.Elsewhere() {
			return change
		}
	}
}

// TestMonitorTellsEveryGeneration: also of our own commits, and of those to other tables.
func TestMonitorTellsEveryGeneration(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	m := joined(t, k)
	before, err := k.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	commit(t, k, nfttest.FrontendBatch(100, nft.Drop))
	lab.Run(t, "", "nft", "add", "table", "ip", "other")
	for i := range uint32(2) {
		change, err := m.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !change.Elsewhere() || change.Generation != before+1+i {
			t.Errorf("heard %d events of generation %d, want none of generation %d", len(change.Events), change.Generation,
				before+1+i)
		}
	}
}

func TestMonitorHearsOthersAlone(t *testing.T) {
	lab.New(t)
	k, other := lab.Open(t, Open), lab.Open(t, Open)
	m := joined(t, k)
	commit(t, k, nfttest.FrontendBatch(100, nft.Drop))
	lab.Run(t, "table ip other { set s { type ipv4_addr; elements = { 192.0.2.1 }; }; }", "nft", "-f", "-")
	commit(t, other, nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Chain: &nft.Chain{Name: "foreign"}}}})
	generation, err := k.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	change := nextChange(t, m)
	if len(change.Events) != 1 || change.Events[0].Verb != nft.Add || change.Events[0].Chain == nil ||
		change.Generation != generation {
		t.Errorf("heard %d events of generation %d, want the new chain of generation %d", len(change.Events),
			change.Generation, generation)
	}
	if change.PID == 0 || change.Program == "" || change.Lost {
		t.Errorf("done by %q (pid %d), lost: %v", change.Program, change.PID, change.Lost)
	}
	lab.Run(t, "", "nft", "flush", "ruleset")
	if change = nextChange(t, m); change.Program != "nft" {
		t.Errorf("done by %q, want nft", change.Program)
	}
}

func TestMonitorLeaves(t *testing.T) {
	lab.New(t)
	k, other := lab.Open(t, Open), lab.Open(t, Open)
	m := joined(t, k)
	commit(t, k, nfttest.FrontendBatch(1, nft.Drop))
	if err := m.Leave(); err != nil {
		t.Fatal(err)
	}
	commit(t, other, nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Chain: &nft.Chain{Name: "unheard"}}}})
	if err := m.Join(); err != nil {
		t.Fatal(err)
	}
	commit(t, other, nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Chain: &nft.Chain{Name: "heard"}}}})
	chain := nextChange(t, m).Events[0].Chain
	if chain.Name != "heard" {
		t.Errorf("heard of chain %s", chain.Name)
	}
}

// TestMonitorOverrun commits more than a receive buffer holds while the monitor does not receive.
func TestMonitorOverrun(t *testing.T) {
	lab.New(t)
	k, other := lab.Open(t, Open), lab.Open(t, Open)
	m := joined(t, k)
	elements := nfttest.FrontendBatch(20000, nft.Drop)
	commit(t, k, elements)
	last := elements.Ops[len(elements.Ops)-1]
	for range 20 {
		gone := last
		gone.Verb = nft.Delete
		commit(t, other, nft.Batch{Ops: []nft.Op{gone, last}})
	}
	for range 100 {
		if nextChange(t, m).Lost {
			return
		}
	}
	t.Error("800,000 notifications, and none was lost")
}

func TestMonitorClosed(t *testing.T) {
	lab.New(t)
	m, err := NewMonitor(lab.Open(t, Open))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := m.Next()
		ended <- err
	}()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("Next goes on after Close")
	}
}

// FuzzForeignChange feeds hostile notifications to a monitor and a ruleset: whatever they say,
// our tables are never taken out of the kernel because of them.
func FuzzForeignChange(f *testing.F) {
	r := newRuleset(3)
	batch := change.Diff(nft.Tables{}, r.Want())
	var seed wire.Encoding
	if err := seed.Encode(&batch, wire.Ours, 1); err != nil {
		f.Fatal(err)
	}
	generation := []byte{28, 0, 0, 0, 15, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0, 0, 0, 0, 9}
	seen := make(map[byte]int)
	for i := range seed.Messages() {
		message := seed.Message(i)
		kind := message[4]
		if seen[kind]++; seen[kind] > 5 {
			continue
		}
		f.Add(message, generation)
		deletion := append([]byte(nil), message...)
		deletion[4]++ // what takes away is numbered after what makes, or after what gets
		f.Add(deletion, generation)
		deletion[4]++
		f.Add(deletion, generation)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		r := newRuleset(3)
		r.Committed()
		var m Monitor
		for _, b := range [][]byte{first, second, generation} {
			change := m.parse(b)
			if change == nil {
				continue
			}
			damaged, known := r.Record(change)
			if !known {
				return
			}
			repair := r.Changes()
			if (damaged == 0) != repair.Empty() {
				t.Errorf("%d objects are damaged, %d operations repair them", damaged, len(repair.Ops))
			}
			for _, op := range repair.Ops {
				if op.Table != nil && op.Verb != nft.Add {
					t.Errorf("the repair would %s", op.Text())
				}
			}
		}
	})
}

// TestMonitorDoesNotWaitForever: a notification that does not come counts as a change of our tables.
func TestMonitorDoesNotWaitForever(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	m, err := NewMonitor(k)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Join(); err != nil {
		t.Fatal(err)
	}
	generation, err := k.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !m.changed(generation, generation+1) {
		t.Error("a generation whose notifications do not come is no change")
	}
}
