package daemon

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http/httptest"
	"strings"
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
		{"/statusz", "", 200, "text/plain; charset=utf-8", ""},
		{"/statusz", "ComponentStatusz=false", 404, "text/plain; charset=utf-8", ""},
		{"/flagz", "", 200, "text/plain; charset=utf-8", ""},
		{"/flagz", "AllBeta=false", 404, "text/plain; charset=utf-8", ""},
		{"/debug/flags/v", "", 404, "text/plain; charset=utf-8", ""},
		{"/debug/flags/v", "--profiling", 200, "text/plain; charset=utf-8", "0\n"},
		{"/debug/pprof/", "", 404, "text/plain; charset=utf-8", ""},
		{"/debug/pprof/", "--profiling", 200, "text/html; charset=utf-8", ""},
		{"/debug/pprof/goroutine?debug=1", "--profiling", 200, "text/plain; charset=utf-8", ""},
		{"/debug/pprof/cmdline", "--profiling", 200, "text/plain; charset=utf-8", ""},
		{"/", "", 404, "text/plain; charset=utf-8", ""},
	} {
		t.Run(tt.path+tt.args, func(t *testing.T) {
			var args []string
			if gates := strings.Contains(tt.args, "="); gates {
				args = []string{"--feature-gates", tt.args}
			}
			c := newTestConfig(t, args...)
			c.Profiling = tt.args == "--profiling"
			handler, err := metricsHandler(c, map[string]string{"v": "2"}, newTestMetrics(), zap.NewNop())
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
	text, err := newTestConfig(t, "--masquerade-all", "--affinity-size=7").JSON()
	if err != nil {
		t.Fatal(err)
	}
	var shown map[string]struct {
		Kind             string
		HostnameOverride string
		NFTables         struct{ MasqueradeAll bool }
		AffinitySize     int
	}
	if err := json.Unmarshal(text, &shown); err != nil {
		t.Fatal(err)
	}
	got := shown["kubeproxy.config.k8s.io"]
	if got.Kind != "KubeProxyConfiguration" || got.HostnameOverride != "node-1" || !got.NFTables.MasqueradeAll {
		t.Errorf("got %+v", got)
	}
	if own := shown["kube-nft.github.io"]; own.Kind != "KubeNFTConfiguration" || own.AffinitySize != 7 || len(shown) != 2 {
		t.Errorf("got %+v of %d", own, len(shown))
	}
}

// TestLevelAtRunTime: requests change what the log has, and every change has a line.
func TestLevelAtRunTime(t *testing.T) {
	c := newTestConfig(t, "--profiling", "--log-level=warn")
	var lines bytes.Buffer
	log := c.Log(&lines)
	handler, err := metricsHandler(c, nil, newTestMetrics(), log)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		method, flag, body string
		code               int
		answer, level      string
		line               string
	}{
		{"GET", "v", "", 200, "0\n", "warn", ""},
		{"PUT", "v", "4", 200, "log level debug\n", "debug", `"from":"warn","to":"debug"`},
		{"GET", "v", "", 200, "4\n", "debug", ""},
		{"PUT", "v", "9\n", 200, "log level debug\n", "debug", ""},
		{"PUT", "v", "x", 400, "expected a whole number, 0 to 4294967295: from 4 on it means the level debug, else info\n",
			"debug", ""},
		{"PUT", "v", "2", 200, "log level info\n", "info", `"from":"debug","to":"info"`},
		{"PUT", "log-level", "error", 200, "log level error\n", "error", `"from":"info","to":"error"`},
		{"GET", "log-level", "", 200, "error\n", "error", ""},
		{"PUT", "log-level", "fatal", 400, "expected debug, info, warn or error\n", "error", ""},
		{"POST", "v", "4", 406, "expected GET or PUT\n", "error", ""},
	} {
		lines.Reset()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(tt.method, "/debug/flags/"+tt.flag, strings.NewReader(tt.body)))
		if w.Code != tt.code || w.Body.String() != tt.answer || c.LogLevel.String() != tt.level {
			t.Errorf("%s %s %q: %d, %q, level %s", tt.method, tt.flag, tt.body, w.Code, w.Body, c.LogLevel)
		}
		if got := lines.String(); (got == "") != (tt.line == "") || !strings.Contains(got, tt.line) {
			t.Errorf("%s %s %q: log %q, want %q", tt.method, tt.flag, tt.body, got, tt.line)
		}
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
			m := &monitor{config: newTestConfig(t, tt.args...), metrics: newTestMetrics(), log: zap.NewNop()}
			servers, err := m.newServers(nil)
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
	handler := healthHandler(health.NewProxy(1, func() *tracker.Node { return new(tracker.Node) }, proxysync.NewQueue()),
		newTestMetrics())
	for path, code := range map[string]int{"/healthz": 200, "/livez": 200, "/readyz": 503, "/": 404, "/metrics": 404} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != code {
			t.Errorf("%s: got %d, want %d", path, w.Code, code)
		}
	}
}
