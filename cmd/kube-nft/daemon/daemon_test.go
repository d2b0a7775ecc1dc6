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
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// TestUntilDone: the end that was asked for is one line and no error, whatever is under way.
func TestUntilDone(t *testing.T) {
	failure := errors.New("broken")
	for name, tt := range map[string]struct {
		asked bool
		wait  func() error
		want  error
		lines int
	}{
		"asked while busy":  {true, func() error { <-t.Context().Done(); return nil }, nil, 1},
		"asked and failing": {true, func() error { return failure }, nil, 1},
		"fails":             {false, func() error { return failure }, failure, 0},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if tt.asked {
			cancel()
		}
		core, logs := observer.New(zapcore.InfoLevel)
		served := make(chan struct{})
		close(served)
		d := daemon{log: zap.New(core), served: served}
		if err := d.untilDone(ctx, tt.wait); err != tt.want {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if n := logs.FilterMessage("ending; the rules stay").Len(); n != tt.lines || logs.Len() != n {
			t.Errorf("%s: log %v", name, logs.All())
		}
		cancel()
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
