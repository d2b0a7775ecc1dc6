package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/migrate"
)

// TestStatusNamesWhatTheDaemonWaitsFor: the answer to kube-nft status has the reason why nothing is committed.
func TestStatusNamesWhatTheDaemonWaitsFor(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(*daemon)
		want    string
	}{
		"nothing":  {func(*daemon) {}, ""},
		"objects":  {func(d *daemon) { d.waits.Store(new("Services")) }, "Services"},
		"takeover": {func(d *daemon) { d.safetyStop(&migrate.LossError{}) }, "a source that has what kube-proxy serves: "},
		"kube-proxy": {func(d *daemon) { d.takeover.latest.Store(progress{migrate.Waiting, "PID 7"}) },
			"a running kube-proxy to end: PID 7"},
		"source": {func(d *daemon) { d.safetyStop(errors.New("no Service")) },
			"a source that has what our tables serve: no Service"},
		"kernel": {func(d *daemon) { d.failed(errors.New("no memory")) }, "a commit that the kernel accepts: no memory"},
		"commit done": {func(d *daemon) { d.failed(errors.New("no memory")); d.monitor.proxy.Updated(time.Now()) },
			"its ports for health checks and metrics to open"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(configOf(t, "--manifests=m"), zap.NewNop())
			d.monitor, _ = newTestMonitor(t)
			d.monitor.safety = newSafetyCheck(zap.NewNop(), d.monitor.events, func(string, bool) {})
			d.takeover = d.newTakeover(nil)
			d.feed = &config.Feed{Synced: make(chan struct{})}
			tt.prepare(d)
			if got := d.status().WaitingFor; !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestForeignProxyWhileRefused: kube-nft does not serve next to kube-proxy before it has committed.
func TestForeignProxyWhileRefused(t *testing.T) {
	d := newDaemon(configOf(t, "--manifests=m"), zap.NewNop())
	d.monitor, _ = newTestMonitor(t)
	d.takeover = d.newTakeover(nil)
	expect := func(when string, want map[migrate.State]bool) {
		for _, state := range migrate.States {
			d.takeover.latest.Store(progress{state: state})
			if got := d.replaces(); got != want[state] {
				t.Errorf("state %s %s the first commit: got %t, want %t", state, when, got, want[state])
			}
		}
	}
	expect("before", map[migrate.State]bool{migrate.Replacing: true, migrate.Refused: true})
	d.monitor.proxy.Updated(time.Now())
	expect("after", map[migrate.State]bool{migrate.Replacing: true})
	if d.takeover = nil; d.replaces() {
		t.Error("a daemon without a takeover has one at work")
	}
}

// TestFailedStartClosesSockets: those of the sync loop and of scrapes.
func TestFailedStartClosesSockets(t *testing.T) {
	var clients []*kernel.Client
	for range 2 {
		client, err := kernel.Open()
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, client)
	}
	d := daemon{kernel: clients[0], monitor: &monitor{scraped: clients[1]}}
	d.close()
	for i, client := range clients {
		if client.Close() == nil { // EBADF if it is closed already
			t.Errorf("socket %d was open", i)
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
