package metrics

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apimachinery/pkg/version"
	clientmetrics "k8s.io/client-go/tools/metrics"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

var bothFamilies = []tracker.Family{tracker.IPv4, tracker.IPv6}

// A fakeKernel answers scrapes.
type fakeKernel struct {
	usage map[nft.Family]map[string]kernel.Fill
	err   error
}

func (k *fakeKernel) DynamicFill(_ context.Context, f nft.Family, _ int) (map[string]kernel.Fill, error) {
	return k.usage[f], k.err
}

func (k *fakeKernel) RuleCounter(_ context.Context, f nft.Family, chain string) (packets uint64, ok bool, err error) {
	packets, ok = map[string]uint64{layout.RejectChain: 3, layout.DropSourceChain: 0}[chain]
	return packets, ok && f == nft.IP, k.err // in IPv6 a table of before they were counted
}

func (k *fakeKernel) Generation(context.Context) (uint32, error) { return 42, k.err }

// newTestMetrics returns Metrics of both families with everything that can be in them.
func newTestMetrics(k *fakeKernel) *Metrics {
	queue := proxysync.NewQueue()
	queue.Notify()
	return New(Config{
		Families: bothFamilies,
		Changes: func() (total, pending tracker.Changes) {
			return tracker.Changes{Services: 5, Slices: 7}, tracker.Changes{Services: 1, Slices: 2}
		},
		Queue:       queue,
		Unserved:    func() int { return 3 },
		NodeMissing: func() bool { return true },
		Kernel:      k,
		Component:   &version.Info{GitVersion: "v1.2.3", Platform: "linux/amd64"},
		Gates:       []Gate{{Name: "A", Stage: "ALPHA"}, {Name: "B", On: true}},
		Connections: func() (entries, limit int64, err error) { return 5, 10, k.err },
		Build: &debug.BuildInfo{
			GoVersion: "go1.26", Main: debug.Module{Version: "v1.2.3"},
			Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}},
		},
	})
}

// used returns Metrics in which every metric has a series.
func used() *Metrics {
	m := newTestMetrics(new(fakeKernel))
	m.Committed(&proxysync.Report{}, map[nft.Family]map[string]int{nft.IP: {"services": 1}}, kernel.Traffic{})
	request(m.CountRequests())
	return m
}

// request reports a request as client-go does, one that waited, failed, was repeated and
// answered.
func request(hooks clientmetrics.RegisterOpts) {
	ctx := context.Background()
	u := url.URL{Scheme: "https", Host: "192.0.2.10:6443", Path: "/api/v1/services"}
	hooks.RateLimiterLatency.Observe(ctx, "GET", u, 20*time.Millisecond)
	hooks.RequestSize.Observe(ctx, "GET", u.Host, 0)
	hooks.RequestResult.Increment(ctx, "<error>", "GET", u.Host)
	hooks.RequestRetry.IncrementRetry(ctx, "<error>", "GET", u.Host)
	hooks.RequestResult.Increment(ctx, "200", "GET", u.Host)
	hooks.RequestLatency.Observe(ctx, "GET", u, 3*time.Second)
	hooks.ResponseSize.Observe(ctx, "GET", u.Host, 5000)
}

// TestRequests: names, labels and buckets are those that dashboards of kube-proxy ask for.
func TestRequests(t *testing.T) {
	check(t, used().Handler(zap.NewNop()), `
		rest_client_requests_total{code="200",host="192.0.2.10:6443",method="GET"} 1
		rest_client_requests_total{code="<error>",host="192.0.2.10:6443",method="GET"} 1
		rest_client_request_retries_total{code="<error>",host="192.0.2.10:6443",verb="GET"} 1
		rest_client_request_duration_seconds_bucket{host="192.0.2.10:6443",verb="GET",le="2"} 0
		rest_client_request_duration_seconds_bucket{host="192.0.2.10:6443",verb="GET",le="4"} 1
		rest_client_rate_limiter_duration_seconds_bucket{host="192.0.2.10:6443",verb="GET",le="0.025"} 1
		rest_client_request_size_bytes_bucket{host="192.0.2.10:6443",verb="GET",le="64"} 1
		rest_client_response_size_bytes_bucket{host="192.0.2.10:6443",verb="GET",le="4096"} 0
		rest_client_response_size_bytes_bucket{host="192.0.2.10:6443",verb="GET",le="16384"} 1
	`)
}

// lintExceptions are names of kube-proxy's that Prometheus would choose differently. Those
// who watch kube-proxy look for these names.
var lintExceptions = map[string]string{
	"kubeproxy_sync_proxy_rules_no_local_endpoints_total": `non-counter metrics should not have "_total" suffix`,
}

func TestLint(t *testing.T) {
	problems, err := testutil.GatherAndLint(used().registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		if lintExceptions[problem.Metric] != problem.Text {
			t.Errorf("%s: %s", problem.Metric, problem.Text)
		}
	}
	if len(problems) != len(lintExceptions) {
		t.Errorf("%d problems, %d exceptions", len(problems), len(lintExceptions))
	}
}

// check holds series of a scrape against the text format, without HELP and TYPE.
func check(t *testing.T, handler http.Handler, want string) {
	t.Helper()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	got := map[string]bool{}
	for line := range strings.Lines(w.Body.String()) {
		got[strings.TrimSpace(line)] = true
	}
	for line := range strings.Lines(want) {
		if line = strings.TrimSpace(line); line != "" && !got[line] {
			t.Errorf("no %s in the scrape", line)
		}
	}
	if t.Failed() {
		t.Logf("scrape:\n%s", w.Body)
	}
}

func TestScrapeBeforeFirstSync(t *testing.T) {
	m := newTestMetrics(&fakeKernel{usage: map[nft.Family]map[string]kernel.Fill{
		nft.IP: {"a": {Count: 1, Size: 4}, "b": {Count: 3, Size: 4}},
	}})
	check(t, m.Handler(zap.NewNop()), `
		kube_nft_build_info{go_version="go1.26",revision="abc",version="v1.2.3"} 1
		kube_nft_nftables_generation 42
		kube_nft_affinity_entries{ip_family="IPv4"} 4
		kube_nft_affinity_entries{ip_family="IPv6"} 0
		kube_nft_affinity_fill_ratio{ip_family="IPv4"} 0.75
		kube_nft_refused_packets_total{cause="no-endpoints",ip_family="IPv4"} 3
		kube_nft_refused_packets_total{cause="source-range",ip_family="IPv4"} 0
		kube_nft_scrape_failures_total 0
		kube_nft_health_check_ports_unserved 3
		kube_nft_refused_fields_total{kind="EndpointSlice"} 0
		kubeproxy_sync_proxy_rules_service_changes_total 5
		kubeproxy_sync_proxy_rules_service_changes_pending 1
		kubeproxy_sync_proxy_rules_endpoint_changes_total 7
		kubeproxy_sync_proxy_rules_endpoint_changes_pending 2
		kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 0
		kubeproxy_proxy_livez_total{code="503"} 0
		kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="0.001"} 0
		kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="16.384"} 0
		kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="0.25"} 0
		kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="59"} 0
		kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="115"} 0
		kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="300"} 0
	`)
}

func TestKernelThatDoesNotAnswer(t *testing.T) {
	check(t, newTestMetrics(&fakeKernel{err: errors.New("no")}).Handler(zap.NewNop()), `
		kube_nft_scrape_failures_total 3
		kube_nft_conflicts 0
	`)
}

// A stuckClient does not read.
type stuckClient struct {
	http.ResponseWriter
	arrived func()
	reads   <-chan struct{}
}

func (c stuckClient) Write(p []byte) (int, error) {
	c.arrived()
	<-c.reads
	return len(p), nil
}

// TestClientsThatDoNotRead: clients that do not read their answer keep no other client from a scrape. Clients that
// have gone leave nothing in the log.
func TestClientsThatDoNotRead(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	handler := newTestMetrics(new(fakeKernel)).Handler(zap.New(core))
	reads := make(chan struct{})
	var arrived, scrapes sync.WaitGroup
	defer scrapes.Wait()
	defer close(reads)
	for range maxScrapes {
		arrived.Add(1)
		scrapes.Go(func() {
			handler.ServeHTTP(stuckClient{httptest.NewRecorder(), sync.OnceFunc(arrived.Done), reads},
				httptest.NewRequest("GET", "/metrics", nil))
		})
	}
	arrived.Wait()
	got := httptest.NewRecorder()
	handler.ServeHTTP(got, httptest.NewRequest("GET", "/metrics", nil))
	if got.Code != http.StatusOK {
		t.Errorf("beside clients that do not read: %d %q", got.Code, got.Body)
	}
	scrapeLog{zap.NewStdLog(zap.New(core))}.Println("error encoding:", http.ErrHandlerTimeout)
	scrapeLog{zap.NewStdLog(zap.New(core))}.Println("error gathering:", errors.New("no memory"))
	if logs.Len() != 1 || logs.FilterMessage("error gathering: no memory").Len() != 1 {
		t.Errorf("log: %v", logs.All())
	}
}

// TestNoTableIsNoFailure scrapes before the first commit.
func TestNoTableIsNoFailure(t *testing.T) {
	lab.New(t)
	check(t, New(Config{Queue: proxysync.NewQueue(),
		Families: bothFamilies, Kernel: lab.Open(t, kernel.Open), Build: new(debug.BuildInfo),
		Changes:     func() (total, pending tracker.Changes) { return },
		Unserved:    func() int { return 0 },
		NodeMissing: func() bool { return false },
	}).Handler(zap.NewNop()), `
		kube_nft_affinity_entries{ip_family="IPv4"} 0
		kube_nft_affinity_entries{ip_family="IPv6"} 0
		kube_nft_scrape_failures_total 0
	`)
}

func TestCommitted(t *testing.T) {
	m := newTestMetrics(new(fakeKernel))
	m.Committed(&proxysync.Report{
		Full: true, Operations: 3, Compile: time.Millisecond, Commit: 2 * time.Millisecond,
		Delta:    tracker.Delta{Triggers: []tracker.Trigger{{Family: tracker.IPv6, At: time.Now().Add(-90 * time.Second)}}},
		Standing: 2, SkippedPorts: 1,
	}, map[nft.Family]map[string]int{nft.IP: {"services": 10}, nft.IP6: {"services": 20}},
		kernel.Traffic{Batches: 1, Messages: 10, Bytes: 1000})
	m.Cleaned(proxysync.FlowReport{Duration: 5 * time.Millisecond, Lag: 250 * time.Millisecond,
		Deleted: map[tracker.Family]int{tracker.IPv6: 4}})
	m.Committed(&proxysync.Report{ReviewReason: "foreign commit"}, nil,
		kernel.Traffic{Batches: 1, Messages: 10, Bytes: 1000})
	m.Committed(&proxysync.Report{ReviewReason: "foreign commit", Operations: 1, SkippedPorts: 3, StandUnmet: 5,
		Delta: tracker.Delta{Waiting: 6, Unserved: 7}}, nil, kernel.Traffic{Batches: 3, Messages: 25, Bytes: 2500})
	check(t, m.Handler(zap.NewNop()), `
		kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 3
		kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 0.003
		kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1
		kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv6"} 2
		kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv6",le="85"} 0
		kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv6",le="100"} 1
		kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 0
		kubeproxy_conntrack_reconciler_sync_duration_seconds_sum{ip_family="IPv4"} 0.005
		kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 0
		kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv6"} 4
		kube_nft_stale_connections_lag_seconds_sum 0.25
		kube_nft_compile_duration_seconds_count 3
		kube_nft_commit_duration_seconds_count 2
		kube_nft_commit_duration_seconds_sum 0.002
		kube_nft_batches_total 3
		kube_nft_batch_messages_total 25
		kube_nft_batch_bytes_total 2500
		kube_nft_elements{ip_family="IPv4",set="services"} 10
		kube_nft_elements{ip_family="IPv6",set="services"} 20
		kube_nft_conflicts 0
		kube_nft_skipped_ports 3
		kube_nft_unmet_annotations 5
		kube_nft_unserved_services 7
		kube_nft_waiting_services 6
		kube_nft_reviews_total 2
		kube_nft_repairs_total 1
	`)
}

// TestControlPlaneIsAhead has a control plane whose clock is ahead of the node's.
func TestControlPlaneIsAhead(t *testing.T) {
	m := newTestMetrics(new(fakeKernel))
	ahead := tracker.Trigger{Family: tracker.IPv4, At: time.Now().Add(time.Hour)}
	m.Committed(&proxysync.Report{Delta: tracker.Delta{Triggers: []tracker.Trigger{ahead}}}, nil, kernel.Traffic{})
	check(t, m.Handler(zap.NewNop()), `
		kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 1
		kubeproxy_network_programming_duration_seconds_sum{ip_family="IPv4"} 0
	`)
}

func TestFailed(t *testing.T) {
	m := newTestMetrics(new(fakeKernel))
	m.Failed(errors.New("read the tables back"))
	m.Failed(&kernel.OpError{Family: nft.IP6})
	m.Refused("Service")
	check(t, m.Handler(zap.NewNop()), `
		kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 1
		kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 2
		kube_nft_sync_retries_total 2
		kube_nft_refused_fields_total{kind="Service"} 1
	`)
}

func TestNoLocalEndpoints(t *testing.T) {
	m := newTestMetrics(new(fakeKernel))
	id := func(name string) tracker.PortID {
		return tracker.PortID{Namespace: "shop", Service: name, Protocol: tracker.TCP, Family: tracker.IPv4}
	}
	commit := func(delta tracker.Delta) { m.Committed(&proxysync.Report{Delta: delta}, nil, kernel.Traffic{}) }
	of := func(name string, internal, external, endpoints bool) *tracker.ServicePort {
		return &tracker.ServicePort{Lists: new(tracker.Lists), HasEndpoints: endpoints,
			PortSpec: &tracker.PortSpec{ID: id(name), InternalLocal: internal, ExternalLocal: external}}
	}
	some := func(name string) *tracker.ServicePort { return of(name, true, true, true) }
	external := func(name string) *tracker.ServicePort { return of(name, false, true, true) }
	nowhere := func(name string) *tracker.ServicePort { return of(name, true, true, false) }
	for _, step := range []struct {
		delta              tracker.Delta
		internal, external string
	}{
		{tracker.Delta{Changed: []*tracker.ServicePort{some("a"), external("b"), nowhere("c")}},
			"1", "2"},
		{tracker.Delta{Changed: []*tracker.ServicePort{some("a")}}, "1", "2"},
		{tracker.Delta{Changed: []*tracker.ServicePort{external("a")}}, "0", "2"},
		{tracker.Delta{Removed: map[tracker.PortID]bool{id("a"): true, id("c"): true}}, "0", "1"},
		{tracker.Delta{Changed: []*tracker.ServicePort{nowhere("b")}}, "0", "0"},
	} {
		commit(step.delta)
		check(t, m.Handler(zap.NewNop()), `
			kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"} `+step.internal+`
			kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"} `+step.external+`
			kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv6",traffic_policy="internal"} 0
		`)
	}
}

func TestProbesAreCounted(t *testing.T) {
	m := newTestMetrics(new(fakeKernel))
	answer := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	request := httptest.NewRequest(http.MethodGet, "/", nil)
	m.CountHealthz(answer(503)).ServeHTTP(httptest.NewRecorder(), request)
	m.CountLivez(answer(200)).ServeHTTP(httptest.NewRecorder(), request)
	check(t, m.Handler(zap.NewNop()), `
		kubeproxy_proxy_healthz_total{code="200"} 0
		kubeproxy_proxy_healthz_total{code="503"} 1
		kubeproxy_proxy_livez_total{code="200"} 1
	`)
}

// TestChecks: answers of health checks are shown as other components show them, apart from
// the other metrics.
func TestChecks(t *testing.T) {
	m, code := newTestMetrics(new(fakeKernel)), http.StatusServiceUnavailable
	probe := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
	handlers := []http.Handler{
		m.CountReadyz(probe), m.CountHealthz(probe), m.CountLivez(probe),
		m.CountPing(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})),
	}
	ask := func() {
		for _, handler := range handlers {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		}
	}
	ask()
	check(t, m.ChecksHandler(zap.NewNop()), `
		kubernetes_healthcheck{name="ping",type="healthz"} 1
		kubernetes_healthcheck{name="proxy",type="healthz"} 0
		kubernetes_healthcheck{name="proxy",type="livez"} 0
		kubernetes_healthcheck{name="proxy",type="readyz"} 0
		kubernetes_healthchecks_total{name="proxy",status="error",type="readyz"} 1
		kubernetes_healthchecks_total{name="proxy",status="success",type="readyz"} 0
	`)
	code = http.StatusOK
	ask()
	check(t, m.ChecksHandler(zap.NewNop()), `
		kubernetes_healthcheck{name="proxy",type="readyz"} 1
		kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 2
		kubernetes_healthchecks_total{name="proxy",status="error",type="readyz"} 1
		kubernetes_healthchecks_total{name="proxy",status="success",type="readyz"} 1
	`)
	if problems, err := testutil.GatherAndLint(m.checks.registry); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// TestLatencyFromTheEvent: the time since the oldest change has buckets from 0.1 ms, and the first sync,
// whose changes are all objects, does not count.
func TestLatencyFromTheEvent(t *testing.T) {
	m := newTestMetrics(new(fakeKernel))
	for range 3 {
		m.Committed(&proxysync.Report{Delta: tracker.Delta{
			Oldest:   time.Now().Add(-5 * time.Millisecond),
			Triggers: []tracker.Trigger{{Family: tracker.IPv4, At: time.Now().Add(-20 * time.Millisecond)}},
		}}, nil, kernel.Traffic{})
	}
	body := scrape(t, m, "")
	for _, want := range []string{
		`kube_nft_change_duration_seconds_bucket{le="0.0001"} 0`, `kube_nft_change_duration_seconds_bucket{le="0.0032"} 0`,
		`kube_nft_change_duration_seconds_count 2`,
		`kube_nft_network_programming_duration_seconds_bucket{ip_family="IPv4",le="0.016"} 0`,
		`kube_nft_network_programming_duration_seconds_count{ip_family="IPv4"} 3`,
		`kube_nft_conntrack_entries 5`, `kube_nft_conntrack_entries_limit 10`,
		`kubernetes_feature_enabled{name="A",stage="ALPHA"} 0`, `kubernetes_feature_enabled{name="B",stage=""} 1`,
		`kubernetes_build_info{build_date="",compiler="",git_commit="",git_tree_state="",git_version="v1.2.3",go_version="",major="",minor="",platform="linux/amd64"} 1`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("a scrape lacks %s:\n%s", want, body)
		}
	}
}

// TestNativeHistograms: a scrape that asks for protobuf gets histograms with schema and classic buckets.
func TestNativeHistograms(t *testing.T) {
	families, err := used().registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if strings.HasPrefix(family.GetName(), "go_") || family.GetType() != dto.MetricType_HISTOGRAM {
			continue
		}
		for _, metric := range family.Metric {
			if h := metric.Histogram; h.Schema == nil || len(h.Bucket) == 0 {
				t.Errorf("%s: schema %v, %d classic buckets", family.GetName(), h.Schema, len(h.Bucket))
			}
		}
	}
}

// scrape asks the handler in the format of accept.
func scrape(t *testing.T, m *Metrics, accept string) string {
	t.Helper()
	r, w := httptest.NewRequest(http.MethodGet, "/metrics", nil), httptest.NewRecorder()
	r.Header.Set("Accept", accept)
	m.Handler(zap.NewNop()).ServeHTTP(w, r)
	return w.Body.String()
}
