package sync

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/nft/services/affinity"
)

// A faulty kernel is a real one whose answers are replaced by errors, as long as there are
// any. With an error of late, the kernel has done what it was asked for.
type faulty struct {
	*kernel.Client
	read, early, late []error
	commits           int // that the kernel was asked for
}

func next(errs *[]error) (err error) {
	if len(*errs) > 0 {
		err, *errs = (*errs)[0], (*errs)[1:]
	}
	return err
}

func (k *faulty) ReadUnless(ctx context.Context, changed func(before, after uint32) bool) (nft.Tables, uint32, error) {
	if err := next(&k.read); err != nil {
		return nil, 0, err
	}
	return k.Client.ReadUnless(ctx, changed)
}

func (k *faulty) Commit(ctx context.Context, batch nft.Batch) error {
	if err := next(&k.early); err != nil {
		return err
	}
	k.commits++
	if err := k.Client.Commit(ctx, batch); err != nil {
		return err
	}
	return next(&k.late)
}

// TestFaults lets the socket fail before and after the first commit: in the end everything is
// programmed, with no more commits than it takes.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name    string
		kernel  faulty
		commits int
	}{
		{"EINTR while reading", faulty{read: []error{unix.EINTR, unix.EINTR}}, 1},
		{"ENOBUFS while reading", faulty{read: []error{unix.ENOBUFS}}, 1},
		{"EINTR", faulty{early: []error{&kernel.BatchError{Err: unix.EINTR}}}, 1},
		{"ERESTART", faulty{early: []error{&kernel.BatchError{Err: unix.ERESTART}, &kernel.BatchError{Err: unix.ERESTART}}},
			1},
		{"EMSGSIZE", faulty{early: []error{&kernel.BatchError{Err: unix.EMSGSIZE}}}, 1},
		{"ENOMEM", faulty{early: []error{&kernel.OpError{Err: unix.ENOMEM}, &kernel.BatchError{Err: unix.ENOMEM}}}, 1},
		{"EPERM", faulty{early: []error{&kernel.OpError{Err: unix.EPERM}}}, 1},
		{"answer lost, batch lost", faulty{early: []error{kernel.ErrUnknownOutcome}}, 1},
		{"answer lost, batch done", faulty{late: []error{kernel.ErrUnknownOutcome}}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab.New(t)
			k := tt.kernel
			k.Client = lab.Open(t, kernel.Open)
			g := watchWith(t, &k, k.Client, manyServices(10, 2))
			g.check(t)
			if k.commits != tt.commits {
				t.Errorf("%d commits, want %d", k.commits, tt.commits)
			}
		})
	}
}

// TestFaultsLater is the same for a change, and what was programmed stays in force.
func TestFaultsLater(t *testing.T) {
	for _, fault := range []error{unix.EINTR, unix.ENOBUFS, unix.ENOMEM, unix.EMSGSIZE, unix.EPERM} {
		t.Run(fault.Error(), func(t *testing.T) {
			lab.New(t)
			k := &faulty{Client: lab.Open(t, kernel.Open)}
			g := watchWith(t, k, k.Client, manyServices(10, 2))
			before, _, err := g.reader.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			failed := make(chan nft.Batch, 1)
			k.early = []error{&kernel.BatchError{Err: fault}}
			g.loop.options.Failed = func(error) {
				now, _, err := g.stranger.Read(context.Background())
				if err != nil {
					t.Error(err)
				}
				failed <- change.Diff(now, before)
			}
			port := portWith("web", 1, 1)
			port.ClusterIP = netip.MustParseAddr("10.96.200.1")
			g.feed.set(port)
			g.loop.options.Queue.Notify()
			if batch := <-failed; !batch.Empty() {
				t.Errorf("%d operations away from what was programmed", len(batch.Ops))
			}
			g.report(t)
			g.check(t)
		})
	}
}

// TestFaultsAreReported holds what an administrator reads.
func TestFaultsAreReported(t *testing.T) {
	for text, fault := range map[string]error{
		"commit to nf_tables: message too long (a batch of 7 bytes; raise net.core.wmem_max or run with CAP_NET_ADMIN in " +
			"the initial user namespace); nothing was changed": &kernel.BatchError{Bytes: 7, Err: unix.EMSGSIZE},
		"commit to nf_tables: cannot allocate memory; nothing was changed": &kernel.BatchError{Err: unix.ENOMEM},
		"table ip kube-nft: add table ip kube-nft (base chains): operation not permitted (the table belongs to another " +
			"program until that ends; nft list tables tells its name); nothing was changed": &kernel.OpError{
			Table: "ip kube-nft", Op: "add table ip kube-nft", Err: unix.EPERM},
	} {
		synctest.Test(t, func(t *testing.T) {
			core, logs := observer.New(zap.WarnLevel)
			k := &table{answers: []error{fault}}
			loop := New(new(feed), services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}}), k,
				Options{Log: zap.New(core)})
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			if err := loop.Run(ctx); err != nil {
				t.Error(err)
			}
			if len(logs.All()) != 1 || logs.All()[0].Message != "sync failed" || logs.All()[0].ContextMap()["error"] != text {
				t.Errorf("logged %v, want one failure: %s", logs.All(), text)
			}
		})
	}
}

// TestBrokenSocket: a broken socket ends the loop. The kubelet or systemd starts the process again; the rules stay in
// force.
func TestBrokenSocket(t *testing.T) {
	for _, fault := range []error{unix.EBADF, unix.ENOTSOCK} {
		k := &table{always: fmt.Errorf("enlarge the send buffer: %w", fault)}
		loop := New(new(feed), services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}}), k,
			Options{Log: zap.NewNop()})
		err := loop.Run(t.Context())
		want := "nf_tables cannot be reached any more: enlarge the send buffer: " + fault.Error() +
			"; the rules stay in force, start kube-nft again"
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// TestOtherSchema starts over tables of another version of kube-nft: they are replaced in one
// transaction if their sets differ, and else kept. Clients stay with their endpoints.
func TestOtherSchema(t *testing.T) {
	t.Run("same sets", func(t *testing.T) { testOtherSchema(t, false, 0) })
	t.Run("other sets", func(t *testing.T) { testOtherSchema(t, true, 1) })
}

func testOtherSchema(t *testing.T, counters bool, transactions uint32) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	old := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 1024,
		Counters: counters})
	delta := manyServices(10, 2)
	old.Apply(delta)
	tables := old.Want()
	for _, table := range tables {
		table.Comment = "Kubernetes Services, written by kube-nft (schema 0)"
	}
	batch := change.Diff(nft.Tables{}, tables)
	group, list := firstGroup(t, old)
	client, life := nft.NumberedKey(nft.IP, group.Number, netip.MustParseAddr("192.0.2.1")), &nft.Life{Timeout: time.Hour,
		Expires: 30 * time.Minute}
	endpoint := nft.AddrKey(list.Members[0])
	affinityMap := tables[nft.IP].Sets[layout.AffinityMap(group.Number)].Set
	batch.Ops = append(batch.Ops, nft.Op{Verb: nft.Add, Family: nft.IP, Set: affinityMap, Elements: []nft.KeyedElement{
		{Key: client, Element: nft.Element{Data: endpoint, Life: life}}}})
	if err := k.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	before, err := k.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g := watchWith(t, k, k, delta)
	g.check(t)
	after, err := g.reader.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after-before != transactions {
		t.Errorf("%d transactions, want %d", after-before, transactions)
	}
	entries, err := g.reader.Elements(t.Context(), nft.IP, affinityMap)
	if err != nil {
		t.Fatal(err)
	}
	entry := entries[client]
	if len(entries) != 1 || entry.Data != endpoint || entry.Life == nil ||
		entry.Life.Timeout != time.Hour || entry.Life.Expires > 30*time.Minute || entry.Life.Expires < 29*time.Minute {
		t.Errorf("entries %+v, want the client with its endpoint for the rest of its time", entries)
	}
}

// firstGroup returns a group of some Service with affinity, and its list.
func firstGroup(t *testing.T, r *services.Ruleset) (affinity.Group, affinity.List) {
	t.Helper()
	changes := r.AffinityChanges()
	for _, g := range changes.Groups {
		for _, l := range changes.Lists {
			if g.Family == nft.IP && l.Family == nft.IP && l.Number == g.List {
				return g, l.List
			}
		}
	}
	t.Fatal("no Service has affinity")
	return affinity.Group{}, affinity.List{}
}

// TestRestartWritesNothing starts a second loop over what the first has left.
func TestRestartWritesNothing(t *testing.T) {
	lab.New(t)
	k := &faulty{Client: lab.Open(t, kernel.Open)}
	delta := manyServices(50, 3)
	watchWith(t, k, k.Client, delta)
	again := &faulty{Client: lab.Open(t, kernel.Open)}
	g := watchWith(t, again, again.Client, delta)
	if again.commits != 0 || g.first.Operations != 0 {
		t.Errorf("%d commits of %d operations", again.commits, g.first.Operations)
	}
	g.loop.options.Queue.Notify()
	g.report(t)
	lines := g.logs.FilterMessage("kube-nft started: the kernel had all Services already").All()
	if len(lines) != 1 || lines[0].ContextMap()["elements"] != int64(count(g.ruleset.Lengths())) {
		t.Errorf("%d lines say that all is well, want one: %v", len(lines), g.logs.All())
	}
}

var errOdd = errors.New("odd")

func TestIsRefusal(t *testing.T) {
	for err, want := range map[error]bool{
		errOdd:                               false,
		&kernel.BatchError{Err: unix.EINVAL}: false,
		&kernel.OpError{Err: unix.EINVAL}:    true,
		&kernel.OpError{Err: unix.EEXIST}:    true,
		&kernel.OpError{Err: errOdd}:         true, // it could not be encoded
		&kernel.OpError{Err: unix.ENOMEM}:    false,
		&kernel.OpError{Err: unix.EPERM}:     false,
	} {
		if got := isRefusal(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// count adds up lengths of sets.
func count(lengths map[nft.Family]map[string]int) (elements int) {
	for _, sets := range lengths {
		for _, n := range sets {
			elements += n
		}
	}
	return elements
}
