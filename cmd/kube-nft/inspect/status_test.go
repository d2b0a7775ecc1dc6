package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// scrapeOf is what the metrics server answers, as far as status reads it.
const scrapeOf = `# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram
kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="+Inf"} 7
kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 1
kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 7
# TYPE kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1.7e+09
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"} 1.7e+09
# TYPE kube_nft_sync_retries_total counter
kube_nft_sync_retries_total 2
# TYPE kube_nft_reviews_total counter
kube_nft_reviews_total 4
# TYPE kube_nft_repairs_total counter
kube_nft_repairs_total 3
# TYPE kube_nft_conflicts gauge
kube_nft_conflicts 1
# TYPE kube_nft_refused_fields_total counter
kube_nft_refused_fields_total{kind="Service"} 5
kube_nft_refused_fields_total{kind="Node"} 1
`

func TestStatusOfDaemon(t *testing.T) {
	const metrics = `Last sync           2023-11-14T22:13:20Z, 1m0s ago
Syncs               7
  failed            2
Reviews             4
  with a repair     3
Conflicts           1
Refused fields      6
`
	for name, tt := range map[string]struct {
		healthz, metrics answerOf
		want             string
		works            bool
	}{
		"healthy": {answerOf{200, `{"healthy":true,"nodeEligible":true}`}, answerOf{200, scrapeOf}, "Daemon              healthy\n" + metrics, true},
		"holds back": {answerOf{200, `{"healthy":true,"nodeEligible":true}`}, answerOf{200, scrapeOf + "# TYPE kube_nft_held gauge\nkube_nft_held{reason=\"takeover\"} 1\n"},
			"Daemon              healthy\nTakeover not done, because most Services would be removed: the log line \"safety check\" names them; kube-proxy's rules stay under ours\n" + metrics, true},
		"unhealthy":      {answerOf{503, `{"healthy":false,"nodeEligible":true}`}, answerOf{200, scrapeOf}, "Daemon              unhealthy: a change has waited for too long\n" + metrics, false},
		"going away":     {answerOf{503, `{"healthy":true,"nodeEligible":false}`}, answerOf{200, scrapeOf}, "Daemon              healthy; load balancers should not send traffic here: the Node is going away or\n                    is missing\n" + metrics, true},
		"hides health":   {answerOf{500, ""}, answerOf{200, scrapeOf}, "Daemon              running\n" + metrics + "Not known           HEALTHZ: status 500 Internal Server Error: another program listens there\n", true},
		"is another one": {answerOf{200, "ok"}, answerOf{200, "up 1\n"}, "Daemon              not reached\nNot known           HEALTHZ: the answer is not that of kube-nft: another program listens there\nNot known           METRICS: the answer has no metrics of kube-nft: another program listens there\n", false},
		"talks rubbish":  {answerOf{200, `{"healthy":1}`}, answerOf{200, "{{{"}, "Daemon              not reached\nNot known           HEALTHZ: the answer is not that of kube-nft: another program listens there\nNot known           METRICS: the answer is no scrape: text format parsing error in line 1: invalid label name for metric \"\"\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			healthz, metrics := tt.healthz.serve(t), tt.metrics.serve(t)
			client := daemonClient{client: http.DefaultClient, healthz: healthz, metrics: metrics}
			var b bytes.Buffer
			s := status{Daemon: client.read(t.Context())}
			if got := s.Daemon.works(); got != tt.works {
				t.Errorf("works: %v", got)
			}
			if err := s.write(&b, time.Unix(1_700_000_060, 0)); err != nil {
				t.Fatal(err)
			}
			_, got, _ := strings.Cut(b.String(), "\n\n")
			for wide, address := range map[string]netip.AddrPort{"HEALTHZ": healthz, "METRICS": metrics} {
				path := strings.ToLower(wide)
				got = strings.ReplaceAll(got, fmt.Sprintf("http://%s/%s", address, path), wide)
			}
			if diff := cmp.Diff(strings.Fields(tt.want), strings.Fields(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestStatusBeforeTheFirstSync: what a daemon waits for is more to the point than its health.
func TestStatusBeforeTheFirstSync(t *testing.T) {
	const scrape = `# TYPE kube_nft_repairs_total counter
kube_nft_repairs_total 0
# TYPE kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 0
`
	const requests = "# TYPE rest_client_requests_total counter\nrest_client_requests_total{code=%q,host=\"192.0.2.10:6443\",method=\"GET\"} 3\n"
	const api = "the API server, which has not answered any request successfully"
	for name, tt := range map[string]struct{ scrape, want string }{
		"knows nothing":       {"", ""},
		"no API server":       {fmt.Sprintf(requests, "<error>"), api},
		"refused":             {fmt.Sprintf(requests, "403"), api},
		"answered":            {fmt.Sprintf(requests, "200"), ""},
		"kube-proxy lives":    {"# TYPE kube_nft_takeover gauge\nkube_nft_takeover{state=\"taking\"} 0\nkube_nft_takeover{state=\"waiting\"} 1\n", "a running kube-proxy to end"},
		"would lose Services": {"# TYPE kube_nft_held gauge\nkube_nft_held{reason=\"takeover\"} 1\nkube_nft_held{reason=\"source\"} 0\n", "a source that has what kube-proxy serves: "},
		"would empty tables":  {"# TYPE kube_nft_held gauge\nkube_nft_held{reason=\"takeover\"} 0\nkube_nft_held{reason=\"source\"} 1\n", "a source that has what our tables serve: "},
		"takes over":          {"# TYPE kube_nft_takeover gauge\nkube_nft_takeover{state=\"taking\"} 1\nkube_nft_takeover{state=\"waiting\"} 0\n", ""},
		"no commit is taken":  {"# TYPE kube_nft_sync_retries_total counter\nkube_nft_sync_retries_total 2\n", `a commit that the kernel takes: the log line "sync failed" says why it does not`},
	} {
		t.Run(name, func(t *testing.T) {
			health := serveAnswers(t, answerOf{503, `{"healthy":true,"nodeEligible":false}`}, answerOf{503, "nothing has been committed yet"})
			for _, healthz := range []netip.AddrPort{health, {}} { // without its server, metrics tell
				client := daemonClient{client: http.DefaultClient, healthz: healthz, metrics: answerOf{200, scrape + tt.scrape}.serve(t)}
				d := client.read(t.Context())
				if d.works() || d.Ready == nil || *d.Ready || !strings.HasPrefix(d.WaitingFor, tt.want) || tt.want == "" && d.WaitingFor != "" {
					t.Errorf("ready %v, waits for %q, want %q", d.Ready, d.WaitingFor, tt.want)
				}
				if got, want := d.health(), "has not synced since its start; it waits"; !strings.HasPrefix(got, want) || !strings.Contains(got, tt.want) {
					t.Errorf("%s; want %s ... %s", got, want, tt.want)
				}
				b, err := json.Marshal(d)
				if err != nil || !strings.Contains(string(b), `"ready":false`) || strings.Contains(string(b), "waitingFor") != (tt.want != "") {
					t.Errorf("%s, %v", b, err)
				}
			}
		})
	}
}

// An answerOf is what a server answers.
type answerOf struct {
	code int
	body string
}

// serve answers, and says to whoever asks for it that the daemon has synced.
func (a answerOf) serve(t *testing.T) netip.AddrPort {
	t.Helper()
	return serveAnswers(t, a, answerOf{200, "ok"})
}

// serveAnswers answers one way to /readyz and another one to everything else.
func serveAnswers(t *testing.T, other, readyz answerOf) netip.AddrPort {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := other
		if r.URL.Path == "/readyz" {
			a = readyz
		}
		w.WriteHeader(a.code)
		w.Write([]byte(a.body))
	}))
	t.Cleanup(server.Close)
	return netip.MustParseAddrPort(server.Listener.Addr().String())
}

// TestStatusWithoutDaemon: nothing listens, and that is said with the flag.
func TestStatusWithoutDaemon(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	address := netip.MustParseAddrPort(server.Listener.Addr().String())
	server.Close()
	client := daemonClient{client: http.DefaultClient, healthz: address}
	d := client.read(t.Context())
	want := []string{
		fmt.Sprintf("nothing listens at http://%s/healthz: the daemon is not running, or has another --healthz-bind-address", address),
		"no metrics server is configured (--metrics-bind-address)",
	}
	if diff := cmp.Diff(want, d.Problems); diff != "" || d.Reached {
		t.Errorf("reached %v (-want +got):\n%s", d.Reached, diff)
	}
	if b, err := json.Marshal(d); err != nil || strings.Contains(string(b), "syncs") {
		t.Errorf("%s, %v: what is not known has no value", b, err)
	}
}

func TestReachable(t *testing.T) {
	for address, want := range map[string]string{
		"0.0.0.0:10256": "127.0.0.1:10256", "[::]:10256": "[::1]:10256",
		"192.168.0.2:1": "192.168.0.2:1", "[::1]:10249": "[::1]:10249",
	} {
		if got := reachable(netip.MustParseAddrPort(address)).String(); got != want {
			t.Errorf("%s is reached at %s, want %s", address, got, want)
		}
	}
}
