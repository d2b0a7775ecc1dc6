package peer

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// await begins a turn in a namespace, on a goroutine. The channel is closed when Await has returned.
func await(t *testing.T, n *lab.Namespace, turn *Turn, name string, log *zap.Logger) <-chan struct{} {
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		if err := n.Join(); err != nil {
			t.Error(err)
			return
		}
		if !turn.Await(t.Context(), answersOf(name), log) {
			t.Errorf("%s: ended", name)
		}
	}()
	return returned
}

// TestDaemonsTakeTurns: the second daemon waits, and programs as soon as the first one has given up the lock.
// Commands and the startup probe ask the right one all the time.
func TestDaemonsTakeTurns(t *testing.T) {
	lab.Require(t)
	n, err := lab.NewNamespace()
	if err != nil {
		lab.SkipOrFail(t, "%v", err)
	}
	defer n.Close()
	do := func(job func()) {
		t.Helper()
		if err := n.Do(func() error { job(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	first, second, written := NewTurn(), NewTurn(), make(chan struct{})
	<-await(t, n, first, "first", zap.NewNop())
	if first.lock == nil {
		lab.SkipOrFail(t, "this kernel has no lock")
	}
	core, logs := observer.New(zapcore.InfoLevel)
	begun := await(t, n, second, "second", zap.New(core))
	lab.Eventually(t, "the socket file of the second", func() (open bool) {
		do(func() { open = answers(t.Context(), Waits) })
		return open
	})
	do(func() {
		checkStatus(t, Programs, "first")
		checkStatus(t, Waits, "second")
		if !Running(t.Context()) {
			t.Error("no daemon runs")
		}
	})
	close(written)
	do(func() { first.End(written, zap.NewNop()) })
	<-begun
	do(func() {
		checkStatus(t, Programs, "second")
		checkStatus(t, Waits, "")
	})
	if first.Follows || !second.Follows {
		t.Errorf("follows another one: first %v, second %v", first.Follows, second.Follows)
	}
	if logs.Len() != 2 {
		t.Errorf("log %v", logs.All())
	}
	do(func() {
		second.End(written, zap.NewNop())
		checkStatus(t, Programs, "")
		if Running(t.Context()) {
			t.Error("a daemon runs")
		}
	})
}

// TestTurnEndsWhenNothingIsWritten: the lock is free as soon as nothing is written any more. It stays while a commit
// is under way.
func TestTurnEndsWhenNothingIsWritten(t *testing.T) {
	for _, busy := range []bool{false, true} {
		lab.New(t)
		turn, written := NewTurn(), make(chan struct{})
		if !turn.Await(t.Context(), answersOf("daemon"), zap.NewNop()) || turn.lock == nil {
			lab.SkipOrFail(t, "this kernel has no lock")
		}
		if !busy {
			close(written)
		}
		turn.End(written, zap.NewNop())
		if kernel.Locked() != busy {
			t.Errorf("a commit is under way: %v; locked: %v", busy, !busy)
		}
		if busy {
			turn.door.Close()
			turn.lock.Release()
		}
	}
}

// TestNextIsNotReady: a daemon that ends says what the next one lacks, if that one is not ready in time.
func TestNextIsNotReady(t *testing.T) {
	for name, tt := range map[string]struct {
		next    *Status
		missing string
	}{
		"nothing answers":  {nil, "its answer at the socket for commands"},
		"an empty status":  {&Status{}, "its first commit"},
		"it waits, too":    {&Status{WaitingFor: "the API server"}, "the API server"},
		"it becomes ready": {&Status{Ready: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab.New(t)
			if tt.next != nil {
				answers := answersOf("")
				answers.Status = func() *Status { return tt.next }
				d, err := Open(Programs, answers, zap.NewNop())
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
			}
			core, logs := observer.New(zapcore.WarnLevel)
			awaitNext(zap.New(core))
			missing := ""
			for _, line := range logs.All() {
				missing += line.ContextMap()["missing"].(string)
			}
			if missing != tt.missing {
				t.Errorf("missing %q, want %q", missing, tt.missing)
			}
		})
	}
}
