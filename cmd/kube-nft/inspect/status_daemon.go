package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
)

// A daemonStatus is the daemon's report about itself. Unanswered parts are missing.
type daemonStatus struct {
	Reached  bool     `json:"reached"`            // one of the servers answered
	Problems []string `json:"problems,omitempty"` // why a server did not answer

	Version       string            `json:"version,omitempty"`
	Commit        string            `json:"commit,omitempty"` // of the source it was built from
	Started       *time.Time        `json:"started,omitempty"`
	UptimeSeconds *int64            `json:"uptimeSeconds,omitempty"`
	LogLevel      string            `json:"logLevel,omitempty"`
	Settings      map[string]string `json:"settings,omitempty"` // that are not the defaults, by flag

	Ready      *bool  `json:"ready,omitempty"`      // a sync has succeeded since the start
	WaitingFor string `json:"waitingFor,omitempty"` // what the first sync waits for, if it waits

	Healthy      *bool `json:"healthy,omitempty"`      // changes reach the kernel in time
	NodeEligible *bool `json:"nodeEligible,omitempty"` // load balancers may send traffic here

	NodeMissing *bool `json:"nodeMissing,omitempty"` // there is no Node object of this node's name

	LastSync     *time.Time `json:"lastSync,omitempty"`
	Syncs        *float64   `json:"syncs,omitempty"`
	SyncFailures *float64   `json:"syncFailures,omitempty"`
	Reviews      *float64   `json:"reviews,omitempty"` // reviews of the tables because of others' commits
	Repairs      *float64   `json:"repairs,omitempty"`
	Conflicts    *float64   `json:"conflicts,omitempty"`
	Refused      *float64   `json:"refusedFields,omitempty"`
	HeldBack     *bool      `json:"heldBack,omitempty"` // something would take Services away
	doubtsList   bool

	expectsProxy bool // it does not look for a kube-proxy
}

const (
	daemonTimeout = 3 * time.Second
	// maxAnswer bounds how much of an answer is read.
	maxAnswer = 64 << 20
)

// A daemonClient reads the answers of the daemon's servers. An invalid address stands for no
// server.
type daemonClient struct {
	client           *http.Client
	healthz, metrics netip.AddrPort
}

func (c *daemonClient) read(ctx context.Context) (d daemonStatus) {
	c.get(ctx, &d, "health", "--healthz-bind-address", c.healthz, "/healthz", d.readHealth)
	if d.Healthy != nil {
		c.get(ctx, &d, "health", "--healthz-bind-address", c.healthz, "/readyz", d.readReady)
	}
	c.get(ctx, &d, "metrics", "--metrics-bind-address", c.metrics, "/metrics", d.readMetrics)
	return d
}

// tell takes what the daemon tells over its socket.
func (d *daemonStatus) tell(running *config.Running, now time.Time) {
	d.Version, d.Commit, d.LogLevel, d.Settings = running.Version, running.Commit, running.LogLevel, running.Changed
	d.Started, d.UptimeSeconds = &running.Started, new(int64(max(0, now.Sub(running.Started)).Seconds()))
}

// get reads the answer of one server. /healthz and /readyz have a body with any status.
func (c *daemonClient) get(ctx context.Context, d *daemonStatus, name, flag string, address netip.AddrPort, path string, read func(io.Reader) error) {
	if !address.IsValid() {
		d.Problems = append(d.Problems, fmt.Sprintf("no %s server is configured (%s)", name, flag))
		return
	}
	at := "http://" + reachable(address).String() + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err == nil {
		var response *http.Response
		switch response, err = c.client.Do(request); {
		case err != nil:
			var failed *url.Error
			if errors.As(err, &failed) && failed.Timeout() {
				err = fmt.Errorf("no answer within %s", daemonTimeout)
			} else if failed != nil {
				err = failed.Err // the rest repeats the URL
			}
		case response.StatusCode != http.StatusOK && response.StatusCode != http.StatusServiceUnavailable:
			err = fmt.Errorf("status %s: another program listens there", response.Status)
			response.Body.Close()
		default:
			err = read(io.LimitReader(response.Body, maxAnswer))
			response.Body.Close()
		}
	}
	switch {
	case err == nil:
		d.Reached = true
	case errors.Is(err, syscall.ECONNREFUSED):
		d.Problems = append(d.Problems, fmt.Sprintf("nothing listens at %s: the daemon is not running, or has another %s", at, flag))
	default:
		d.Problems = append(d.Problems, fmt.Sprintf("%s: %v", at, err))
	}
}

// reachable is the address at which this host reaches a server that listens at address.
func reachable(address netip.AddrPort) netip.AddrPort {
	switch addr := address.Addr(); {
	case addr == netip.IPv4Unspecified():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), address.Port())
	case addr == netip.IPv6Unspecified():
		return netip.AddrPortFrom(netip.IPv6Loopback(), address.Port())
	}
	return address
}

// readHealth reads the body of /healthz.
func (d *daemonStatus) readHealth(r io.Reader) error {
	var body struct {
		Healthy      *bool `json:"healthy"`
		NodeEligible *bool `json:"nodeEligible"`
	}
	if err := json.NewDecoder(r).Decode(&body); err != nil || body.Healthy == nil {
		return errors.New("the answer is not that of kube-nft: another program listens there")
	}
	d.Healthy, d.NodeEligible = body.Healthy, body.NodeEligible
	return nil
}

// readReady reads the body of /readyz.
func (d *daemonStatus) readReady(r io.Reader) error {
	body, err := io.ReadAll(r)
	ready := string(body) == "ok"
	d.Ready = &ready
	return err
}

// readMetrics reads a scrape.
func (d *daemonStatus) readMetrics(r io.Reader) error {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return fmt.Errorf("the answer is no scrape: %w", err)
	}
	if families["kube_nft_repairs_total"] == nil {
		return errors.New("the answer has no metrics of kube-nft: another program listens there")
	}
	d.expectsProxy = families["kube_nft_foreign_proxy"] == nil
	s := samples(families)
	d.Syncs = s.largest("kubeproxy_sync_proxy_rules_duration_seconds")
	d.SyncFailures = s.sum("kube_nft_sync_retries_total")
	d.Reviews, d.Repairs = s.sum("kube_nft_reviews_total"), s.sum("kube_nft_repairs_total")
	d.Conflicts, d.Refused = s.sum("kube_nft_conflicts"), s.sum("kube_nft_refused_fields_total")
	if held := s.sum("kube_nft_held"); held != nil {
		d.HeldBack = new(*held > 0)
		d.doubtsList = s.any("kube_nft_held", "reason", "list")
	}
	if missing := s.sum("kube_nft_node_missing"); missing != nil {
		d.NodeMissing = new(*missing > 0)
	}
	if last := s.largest("kubeproxy_sync_proxy_rules_last_timestamp_seconds"); last != nil && *last > 0 {
		at := time.UnixMilli(int64(*last * 1000)).UTC()
		d.LastSync = &at
	}
	if d.Ready == nil {
		ready := d.LastSync != nil
		d.Ready = &ready
	}
	if !*d.Ready {
		d.WaitingFor = s.obstacle()
	}
	return nil
}

// obstacle is what the first sync waits for, as far as metrics show. Requests to the API server are
// counted only if there is one.
func (s samples) obstacle() string {
	switch has := s.any; {
	case has("kube_nft_held", "reason", "takeover"):
		return `a source that has what kube-proxy serves: the log line "safety check" names the missing frontends; kube-proxy's rules stay`
	case has("kube_nft_held", "reason", "source"):
		return `a source that has what our tables serve: the log line "safety check" says more; the tables stay`
	case has("kube_nft_takeover", "state", "waiting"):
		return "a running kube-proxy to end"
	case has("kube_nft_sync_retries_total", "", ""):
		return `a commit that the kernel takes: the log line "sync failed" says why it does not`
	case has("rest_client_requests_total", "code", "") && !has("rest_client_requests_total", "code", "2"):
		return "the API server, which has not answered any request successfully"
	}
	return ""
}

// samples are the metrics of a scrape, by name.
type samples map[string]*dto.MetricFamily

// any reports whether a counter or gauge has series above 0 whose value of a label begins with a
// prefix; a series without the label has the value "".
func (s samples) any(name, label, prefix string) bool {
	var sum float64
	for _, m := range s[name].GetMetric() {
		value := ""
		for _, pair := range m.Label {
			if pair.GetName() == label {
				value = pair.GetValue()
			}
		}
		if strings.HasPrefix(value, prefix) {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum > 0
}

// sum adds up the series of a metric; nil if it is missing.
func (s samples) sum(name string) *float64 {
	return s.fold(name, func(a, b float64) float64 { return a + b })
}

// largest is the largest of the series: metrics by family count the same sync in each.
func (s samples) largest(name string) *float64 {
	return s.fold(name, func(a, b float64) float64 { return max(a, b) })
}

func (s samples) fold(name string, with func(a, b float64) float64) *float64 {
	family := s[name]
	if family == nil {
		return nil
	}
	var result float64
	for _, m := range family.Metric {
		switch {
		case m.Counter != nil:
			result = with(result, m.Counter.GetValue())
		case m.Gauge != nil:
			result = with(result, m.Gauge.GetValue())
		case m.Histogram != nil:
			result = with(result, float64(m.Histogram.GetSampleCount()))
		}
	}
	return &result
}

// rows is the status for people.
func (d *daemonStatus) rows(now time.Time) [][]string {
	rows := [][]string{{"Daemon", d.health()}}
	if d.Started != nil {
		rows = append(rows, []string{"  version", strings.TrimSuffix(d.Version+", commit "+d.Commit, ", commit ")},
			[]string{"  up", fmt.Sprintf("%s, since %s", time.Duration(*d.UptimeSeconds)*time.Second, d.Started.Format(time.RFC3339))},
			[]string{"  log level", d.LogLevel})
		head := "  settings"
		for _, flag := range slices.Sorted(maps.Keys(d.Settings)) {
			rows = append(rows, []string{head, "--" + flag + " " + d.Settings[flag]})
			head = ""
		}
		if len(d.Settings) == 0 {
			rows = append(rows, []string{head, "the defaults"})
		}
	}
	if d.NodeMissing != nil && *d.NodeMissing {
		rows = append(rows, []string{"Node", "no Node object has this node's name; the daemon keeps the last known addresses and zone"})
	}
	switch {
	case d.HeldBack == nil || !*d.HeldBack || d.Ready == nil || !*d.Ready: // before, health says so
	case d.doubtsList:
		rows = append(rows, []string{"Source", "a new list lacks nearly all objects; the daemon keeps them for some minutes: the log line \"safety check\" has their number"})
	default:
		rows = append(rows, []string{"Takeover", "not done, because most Services would be removed: the log line \"safety check\" names them; kube-proxy's rules stay under ours"})
	}
	if d.LastSync != nil {
		age := now.Sub(*d.LastSync).Round(time.Second)
		rows = append(rows, []string{"Last sync", fmt.Sprintf("%s, %s ago", d.LastSync.Format(time.RFC3339), age)})
	}
	for _, line := range []struct {
		head  string
		value *float64
	}{
		{"Syncs", d.Syncs}, {"  failed", d.SyncFailures}, {"Reviews", d.Reviews}, {"  with a repair", d.Repairs},
		{"Conflicts", d.Conflicts}, {"Refused fields", d.Refused},
	} {
		if line.value != nil {
			rows = append(rows, []string{line.head, strconv.FormatFloat(*line.value, 'f', -1, 64)})
		}
	}
	for _, problem := range d.Problems {
		rows = append(rows, []string{"Not known", problem})
	}
	return rows
}

// works reports whether the daemon answers, has synced and is healthy, as far as it was asked.
func (d *daemonStatus) works() bool {
	isFalse := func(b *bool) bool { return b != nil && !*b }
	return d.Reached && !isFalse(d.Ready) && !isFalse(d.Healthy)
}

// health is the daemon's state in a few words.
func (d *daemonStatus) health() string {
	switch {
	case !d.Reached:
		return "not reached"
	case d.Ready != nil && !*d.Ready && d.WaitingFor == "":
		return `has not synced since its start; it waits: the log line "waiting" has the reason`
	case d.Ready != nil && !*d.Ready:
		return "has not synced since its start; it waits for " + d.WaitingFor
	case d.Healthy == nil:
		return "running"
	case !*d.Healthy:
		return "unhealthy: a change has waited for too long"
	case d.NodeEligible != nil && !*d.NodeEligible:
		return "healthy; load balancers should not send traffic here: the Node is going away or is missing"
	}
	return "healthy"
}
