package daemon

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/version"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"sigs.k8s.io/yaml"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/shadow"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/migrate"
	"github.com/kube-nft/kube-nft/nft/readback"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/ejection"
	"github.com/kube-nft/kube-nft/sync/flows"
	"github.com/kube-nft/kube-nft/sync/metrics"
	"github.com/kube-nft/kube-nft/tracker"
)

// A metric is what a scrape says about one metric.
type metric struct {
	name, kind, help string
	labels           []string // of its series, without le
}

// A silentKernel has nothing to tell.
type silentKernel struct{}

func (silentKernel) DynamicFill(context.Context, nft.Family, int) (map[string]kernel.Fill, error) {
	return nil, nil
}
func (silentKernel) RuleCounter(context.Context, nft.Family, string) (uint64, bool, error) {
	return 0, true, nil
}
func (silentKernel) Generation(context.Context) (uint32, error) { return 1, nil }
func (silentKernel) Connections(context.Context, nft.Family, bool) ([]readback.Connections, error) {
	return make([]readback.Connections, 1), nil
}

// noFlows are those to one Service that has had none.
type noFlows struct{}

func (noFlows) Usages() []flows.Usage { return make([]flows.Usage, 1) }
func (noFlows) State() flows.State    { return flows.State{} }

// isDocumented says of which metrics the reference and the dashboard speak: not of those that
// every Go program has.
func isDocumented(name string) bool {
	return strings.HasPrefix(name, "kube") || strings.HasPrefix(name, "rest_client_")
}

// scrape asks the metrics server of a daemon that has synced, by HTTP.
func scrape(t *testing.T, path string) map[string]*metric {
	t.Helper()
	m := metrics.New(metrics.Config{
		Families:    []tracker.Family{tracker.IPv4},
		Changes:     func() (total, pending tracker.Changes) { return },
		Queue:       proxysync.NewQueue(),
		Unserved:    func() int { return 0 },
		NodeMissing: func() bool { return false },
		Kernel:      silentKernel{}, Build: new(debug.BuildInfo), Component: new(version.Info),
		Gates: gates(newTestConfig(t)), Connections: func() (entries, limit int64, err error) { return },
		Ejected: func() []ejection.Endpoint {
			return []ejection.Endpoint{{Port: tracker.PortID{Namespace: "shop", Service: "web"}}}
		},
	})
	m.CountConnections(silentKernel{}.Connections, true)
	m.CountFlows(noFlows{})
	m.SafetyCheck(safetyReasons)
	m.Takeover(takeoverStates(), func() string { return string(migrate.Taken) })
	m.ForeignProxy()
	m.ForwardRefusals()
	m.Shadow(new(shadow.Comparer).Metrics)
	reportRequest(m.CountRequests())
	m.Committed(new(proxysync.Report), nil, kernel.Traffic{})
	m.Committed(&proxysync.Report{Delta: tracker.Delta{Oldest: time.Now()}},
		map[nft.Family]map[string]int{nft.IP: {"services": 1}}, kernel.Traffic{})
	handler, err := metricsHandler(newTestConfig(t), nil, m, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/healthz", nil))
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return parseScrape(w.Body.String())
}

// reportRequest reports one request in every way that client-go has.
func reportRequest(hooks clientmetrics.RegisterOpts) {
	ctx := context.Background()
	hooks.RateLimiterLatency.Observe(ctx, "GET", url.URL{}, 0)
	hooks.RequestSize.Observe(ctx, "GET", "", 0)
	hooks.RequestRetry.IncrementRetry(ctx, "500", "GET", "")
	hooks.RequestResult.Increment(ctx, "200", "GET", "")
	hooks.RequestLatency.Observe(ctx, "GET", url.URL{}, 0)
	hooks.ResponseSize.Observe(ctx, "GET", "", 0)
}

var (
	commentLine = regexp.MustCompile(`^# (HELP|TYPE) (\S+) (.*)$`)
	seriesLine  = regexp.MustCompile(`^([a-z0-9_]+)(?:\{(.*)\})? \S+$`)
	labelName   = regexp.MustCompile(`([a-z_]+)="`)
)

// parseScrape reads the text format.
func parseScrape(text string) map[string]*metric {
	found := make(map[string]*metric)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if c := commentLine.FindStringSubmatch(line); c != nil {
			if found[c[2]] == nil {
				found[c[2]] = &metric{name: c[2]}
			}
			if c[1] == "HELP" {
				found[c[2]].help = c[3]
			} else {
				found[c[2]].kind = c[3]
			}
			continue
		}
		if s := seriesLine.FindStringSubmatch(line); s != nil {
			found[baseName(s[1], found)].addLabels(s[2])
		}
	}
	return found
}

// baseName takes the suffix off a series of a histogram.
func baseName(series string, found map[string]*metric) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base := strings.TrimSuffix(series, suffix); base != series && found[base] != nil {
			return base
		}
	}
	return series
}

func (m *metric) addLabels(text string) {
	for _, label := range labelName.FindAllStringSubmatch(text, -1) {
		if label[1] != "le" && label[1] != "quantile" && !slices.Contains(m.labels, label[1]) {
			m.labels = append(m.labels, label[1])
		}
	}
}

// metricName finds metrics in an expression of PromQL.
var metricName = regexp.MustCompile(`\b(?:kube_nft|kubeproxy|kubernetes|rest_client|go|process)_[a-z0-9_]+`)

// checkExpression reports metrics that no scrape has.
func checkExpression(t *testing.T, found map[string]*metric, where, expression string) {
	t.Helper()
	names := metricName.FindAllString(expression, -1)
	if len(names) == 0 {
		t.Errorf("%s: no metric in %q", where, expression)
	}
	for _, name := range names {
		if found[baseName(name, found)] == nil {
			t.Errorf("%s: no scrape has %s", where, name)
		}
	}
}

// TestPagesNameMetricsThatExist holds the recipes of the documentation against a scrape.
func TestPagesNameMetricsThatExist(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	found := scrape(t, "/metrics")
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range metricName.FindAllString(string(text), -1) {
			if strings.HasPrefix(name, "kube_nft_") && found[baseName(name, found)] == nil {
				t.Errorf("%s: no scrape has %s", page, name)
			}
		}
	}
}

func TestAlertsUseMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	found, seen, runbooks := scrape(t, "/metrics"), map[string]bool{}, map[string]string{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			checkExpression(t, found, rule.Alert, rule.Expr)
			if seen[rule.Alert] || rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" ||
				rule.Annotations["description"] == "" {
				t.Errorf("%q: an alert has a name of its own, a severity, a summary and a description", rule.Alert)
			}
			seen[rule.Alert] = true
			runbooks[rule.Alert] = rule.Annotations["runbook_url"]
		}
	}
	checkRunbooks(t, runbooks)
}

// checkRunbooks holds the alerts against their headings in the documentation: each has one, with text
// below it, and each heading is of an alert.
func checkRunbooks(t *testing.T, runbooks map[string]string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	written := make(map[string]bool)
	for _, section := range regexp.MustCompile(`(?m)^### (KubeNFT\w+)\n\n(\S.{80,})`).FindAllStringSubmatch(string(text),
		-1) {
		written[section[1]] = true
	}
	for alert, url := range runbooks {
		if want := "https://github.com/kube-nft/kube-nft/blob/main/docs/operations.md#" +
			strings.ToLower(alert); url != want || !written[alert] {
			t.Errorf("%s: runbook_url %q, want %q; a section is there: %v", alert, url, want, written[alert])
		}
		delete(written, alert)
	}
	if len(runbooks) == 0 || len(written) > 0 {
		t.Errorf("%d alerts; sections without one: %v", len(runbooks), written)
	}
}

// A panel is a panel of a dashboard, as far as tests look at it.
type panel struct {
	ID      int
	Title   string
	Type    string
	Targets []struct{ Expr string }
	GridPos struct{ X, Y, W, H int }
}

func (p *panel) overlaps(q *panel) bool {
	a, b := p.GridPos, q.GridPos
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}

func TestDashboardUsesMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		UID, Title string
		Panels     []panel
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	found := scrape(t, "/metrics")
	for i := range dashboard.Panels {
		p := &dashboard.Panels[i]
		for _, target := range p.Targets {
			checkExpression(t, found, p.Title, target.Expr)
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for j := range i {
			if q := &dashboard.Panels[j]; p.ID == q.ID || p.overlaps(q) {
				t.Errorf("panels %q and %q have one place or one number", p.Title, q.Title)
			}
		}
	}
	if len(dashboard.Panels) == 0 {
		t.Error("no panels")
	}
}

// TestDashboardShowsEveryMetric keeps new metrics from being forgotten.
func TestDashboardShowsEveryMetric(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	for name := range scrape(t, "/metrics") {
		if isDocumented(name) && !strings.Contains(string(text), name) {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}
