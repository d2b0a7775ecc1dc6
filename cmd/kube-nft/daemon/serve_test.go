package daemon

import (
	"encoding/json"
	"io"
	"net/http/httptest"
	"testing"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/health"
	"github.com/kube-nft/kube-nft/sync/metrics"
	"github.com/kube-nft/kube-nft/tracker"
)

// newTestConfig returns the settings of a command line on a node with files.
func newTestConfig(t *testing.T, args ...string) *config.Config {
	t.Helper()
	return configOf(t, append([]string{"--hostname-override=node-1", "--manifests=."}, args...)...)
}

// configOf returns the settings of a command line.
func configOf(t *testing.T, args ...string) *config.Config {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	reader := config.NewReader(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	c, err := reader.Read()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newTestMetrics() *metrics.Metrics {
	return metrics.New(metrics.Config{
		Changes:     func() (total, pending tracker.Changes) { return },
		Queue:       proxysync.NewQueue(),
		Unserved:    func() int { return 0 },
		NodeMissing: func() bool { return false },
	})
}

func TestMetricsServer(t *testing.T) {
	for _, tt := range []struct {
		path, args  string
		code        int
		contentType string
		body        string // empty: any
	}{
		{"/healthz", "", 200, "text/plain; charset=utf-8", "ok"},
		{"/proxyMode", "", 200, "text/plain; charset=utf-8", "nftables"},
		{"/metrics", "", 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", ""},
		{"/metrics/slis", "", 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", ""},
		{"/configz", "", 200, "application/json", ""},
		{"/debug/pprof/", "", 404, "text/plain; charset=utf-8", ""},
		{"/debug/pprof/", "--profiling", 200, "text/html; charset=utf-8", ""},
		{"/debug/pprof/goroutine?debug=1", "--profiling", 200, "text/plain; charset=utf-8", ""},
		{"/debug/pprof/cmdline", "--profiling", 200, "text/plain; charset=utf-8", ""},
		{"/", "", 404, "text/plain; charset=utf-8", ""},
	} {
		t.Run(tt.path+tt.args, func(t *testing.T) {
			c := newTestConfig(t)
			c.Profiling = tt.args != ""
			handler, err := metricsHandler(c, newTestMetrics(), zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest("GET", tt.path, nil))
			if w.Code != tt.code || tt.body != "" && w.Body.String() != tt.body {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			if got := w.Header().Get("Content-Type"); got != tt.contentType {
				t.Errorf("Content-Type %q, want %q", got, tt.contentType)
			}
		})
	}
}

func TestConfigzIsKubeProxys(t *testing.T) {
	text, err := configz(newTestConfig(t, "--masquerade-all"))
	if err != nil {
		t.Fatal(err)
	}
	var shown map[string]struct {
		Kind             string
		HostnameOverride string
		NFTables         struct{ MasqueradeAll bool }
	}
	if err := json.Unmarshal([]byte(text), &shown); err != nil {
		t.Fatal(err)
	}
	got := shown["kubeproxy.config.k8s.io"]
	if got.Kind != "KubeProxyConfiguration" || got.HostnameOverride != "node-1" || !got.NFTables.MasqueradeAll {
		t.Errorf("got %+v", got)
	}
}

func TestServers(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"defaults", nil, "health 0.0.0.0:10256 metrics 127.0.0.1:10249 "},
		{"IPv6", []string{"--bind-address=::"}, "health [::]:10256 metrics [::1]:10249 "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			proxy := health.NewProxy(1, func() *tracker.Node { return nil }, proxysync.NewQueue())
			servers, err := newServers(newTestConfig(t, tt.args...), proxy, newTestMetrics(), nil, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, server := range servers {
				got += server.Name + " " + server.Address + " "
				server.Failed(io.EOF) // without an API server
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestHealthServer(t *testing.T) {
	handler := healthHandler(health.NewProxy(1, func() *tracker.Node { return new(tracker.Node) }, proxysync.NewQueue()), newTestMetrics())
	for path, code := range map[string]int{"/healthz": 200, "/livez": 200, "/readyz": 503, "/": 404, "/metrics": 404} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != code {
			t.Errorf("%s: got %d, want %d", path, w.Code, code)
		}
	}
}
