package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// TestLetGo: the lock is free as soon as nothing is written any more. It stays while a commit is under way.
func TestLetGo(t *testing.T) {
	for _, busy := range []bool{false, true} {
		lab.New(t)
		lock, err := kernel.TakeLock()
		if err != nil {
			lab.SkipOrFail(t, "%v", err)
		}
		d := daemon{lock: lock, claimed: make(chan struct{}), stopped: make(chan struct{})}
		close(d.claimed)
		if !busy {
			close(d.stopped)
		}
		d.letGo()
		if kernel.Locked() != busy {
			t.Errorf("a commit is under way: %v; locked: %v", busy, !busy)
		}
		if busy {
			lock.Release()
		}
	}
}

// TestReleaser: it releases the tables once, and tries again after an error.
func TestReleaser(t *testing.T) {
	failure := errors.New("no memory")
	outcomes := []error{failure, nil}
	var r releaser
	if _, err := r.release(t.Context()); err == nil {
		t.Error("released before there are tables")
	}
	r.set(true, func(context.Context) (err error) {
		err, outcomes = outcomes[0], outcomes[1:]
		return err
	})
	for i, want := range []error{failure, nil, nil} {
		if already, err := r.release(t.Context()); err != want || already != (i == 2) {
			t.Errorf("release %d: already %v, %v", i+1, already, err)
		}
	}
}

// TestSocketsOfScrapesStay: a scrape may be under way when the daemon ends, so that nothing closes
// its socket; a start that fails leaves none open.
func TestSocketsOfScrapesStay(t *testing.T) {
	for _, working := range []bool{true, false} {
		var clients []*kernel.Client
		for range 3 {
			client, err := kernel.Open()
			if err != nil {
				t.Fatal(err)
			}
			clients = append(clients, client)
		}
		d := daemon{working: working, kernel: clients[0], monitor: &monitor{scraped: clients[1], counted: clients[2]}}
		d.close()
		for i, client := range clients {
			if err := client.Close(); (err == nil) != working { // EBADF if it is closed already
				t.Errorf("working %v: socket %d: %v", working, i, err)
			}
		}
	}
}

// TestFollowConfig: a changed file ends the daemon, and the log names it.
func TestFollowConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.conf")
	write := func(fields string) {
		text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + fields
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	reader := config.NewReader(flags)
	if err := flags.Set("config", path); err != nil {
		t.Fatal(err)
	}
	c, err := reader.Read()
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zapcore.InfoLevel)
	ended := make(chan error, 1)
	go func() { ended <- followConfig(t.Context(), reader, c, zap.New(core)) }()
	write("clusterCIDR: 10.0.0.0/8\n")
	select {
	case err := <-ended:
		if !errors.Is(err, ErrConfigChanged) {
			t.Errorf("got %v, want %v", err, ErrConfigChanged)
		}
	case <-time.After(time.Minute):
		t.Fatal("the change was not noticed")
	}
	if lines := logs.All(); len(lines) != 1 || lines[0].ContextMap()["file"] != path {
		t.Errorf("log %v, want one line naming %s", lines, path)
	}
}
