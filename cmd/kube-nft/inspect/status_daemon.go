package inspect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/words"
)

// A DaemonStatus is the daemon's answer about itself. Without an answer, most of it is missing.
type DaemonStatus struct {
	Reached  bool     `json:"reached"`
	Problems []string `json:"problems,omitempty"` // why there is no answer

	Version       string            `json:"version,omitempty"`
	Commit        string            `json:"commit,omitempty"` // of the source it was built from
	Started       *time.Time        `json:"started,omitempty"`
	UptimeSeconds *int64            `json:"uptimeSeconds,omitempty"`
	LogLevel      string            `json:"logLevel,omitempty"`
	Settings      map[string]string `json:"settings,omitempty"` // that are not the defaults, by flag

	*peer.Status
}

// askDaemon asks the daemon that programs this network namespace.
func askDaemon(ctx context.Context, now time.Time) DaemonStatus {
	status, err := peer.ReadStatus(ctx, peer.Programs, peer.Shadows)
	var running *config.Running
	if err == nil {
		running, err = peer.Settings(ctx)
	}
	if err != nil {
		return DaemonStatus{Problems: []string{err.Error()}}
	}
	return DaemonStatus{
		Reached: true, Status: status,
		Version: running.Version, Commit: running.Commit, LogLevel: running.LogLevel, Settings: running.Changed,
		Started: &running.Started, UptimeSeconds: new(int64(max(0, now.Sub(running.Started)).Seconds())),
	}
}

// rows is the status for people.
func (d *DaemonStatus) rows(now time.Time) [][]string {
	rows := [][]string{{"Daemon", d.Health()}}
	if !d.Reached {
		return rows
	}
	rows = append(rows, []string{"  version", strings.TrimSuffix(d.Version+", commit "+d.Commit, ", commit ")},
		[]string{"  up", fmt.Sprintf("%s, since %s", time.Duration(*d.UptimeSeconds)*time.Second,
			d.Started.Format(time.RFC3339))},
		[]string{"  log level", d.LogLevel})
	head := "  settings"
	for _, flag := range slices.Sorted(maps.Keys(d.Settings)) {
		rows = append(rows, []string{head, "--" + flag + " " + d.Settings[flag]})
		head = ""
	}
	if len(d.Settings) == 0 {
		rows = append(rows, []string{head, "the defaults"})
	}
	if d.NodeMissing {
		rows = append(rows,
			[]string{"Node", "no Node object has this node's name; the daemon keeps the last known addresses and zone"})
	}
	if reason := d.SafetyCheck[peer.SafetyList]; reason != "" {
		rows = append(rows, []string{"Source", "the daemon keeps objects that a list lacks: " + nft.Visible(reason)})
	}
	if reason := d.SafetyCheck[peer.SafetyTakeover]; reason != "" && d.Ready { // before, health says so
		rows = append(rows, []string{"Takeover", "not done, because most Services would be removed: " + nft.Visible(reason)})
	}
	if d.Draining != "" {
		rows = append(rows, []string{"Takeover", "done; " + nft.Visible(d.Draining)})
	}
	if d.Shadow != nil {
		rows = append(rows, shadowRows(d.Shadow, now)...)
	}
	if !d.LastSync.IsZero() {
		age := now.Sub(d.LastSync).Round(time.Second)
		rows = append(rows, []string{"Last sync", fmt.Sprintf("%s, %s ago", d.LastSync.Format(time.RFC3339), age)})
	}
	for _, line := range []struct {
		head   string
		n      int
		always bool
	}{
		{"Syncs", d.Syncs, true}, {"  failed", d.SyncFailures, true},
		{"Reviews", d.Reviews, true}, {"  with a repair", d.Repairs, true},
		{"Conflicts", d.Conflicts, true}, {"Refused fields", d.RefusedFields, true},
		{"Skipped ports", d.SkippedPorts, false}, {"Unmet annotations", d.UnmetAnnotations, false},
		{"Unserved Services", d.UnservedServices, false}, {"Unserved checks", d.UnservedChecks, false},
		{"Waiting Services", d.WaitingServices, false}, {"Ejected endpoints", d.EjectedEndpoints, false},
	} {
		if line.always || line.n > 0 {
			rows = append(rows, []string{line.head, strconv.Itoa(line.n)})
		}
	}
	if f := d.FlowMetrics; f != nil {
		rows = append(rows, []string{"Flow metrics", fmt.Sprintf("on; Services: %d, connections that last: %d",
			f.Services, f.Connections)})
		if f.Lost > 0 {
			text := fmt.Sprintf("%d connections ended and are missing: too many at once", f.Lost)
			rows = append(rows, []string{"  lost", text})
		}
		if f.Problem != "" {
			rows = append(rows, []string{"  problem", nft.Visible(f.Problem)})
		}
	}
	for i := range d.Unserved[:min(len(d.Unserved), shownUnserved)] {
		rows = append(rows, []string{"", unservedText(&d.Unserved[i])})
	}
	for i := range d.Ejected[:min(len(d.Ejected), shownUnserved)] {
		rows = append(rows, []string{"", ejectedText(&d.Ejected[i], now)})
	}
	return rows
}

// shadows reports whether the daemon that answers is in the shadow mode.
func (d *DaemonStatus) shadows() bool { return d.Status != nil && d.Shadow != nil }

// shadowRows is for people what the shadow mode found.
func shadowRows(s *peer.Shadow, now time.Time) (rows [][]string) {
	compared := "never"
	if !s.Compared.IsZero() {
		compared = fmt.Sprintf("%s, %s ago; %s of kube-proxy's; it took %s",
			s.Compared.UTC().Truncate(time.Second).Format(time.RFC3339), now.Sub(s.Compared).Round(time.Second),
			words.Plural(s.Frontends, "frontend"), time.Duration(s.Seconds*float64(time.Second)).Round(time.Millisecond))
	}
	rows = append(rows, []string{"Compared", compared})
	if s.Problem != "" {
		rows = append(rows, []string{"  not now", nft.Visible(s.Problem)})
	}
	rows = append(rows, []string{"Differences", fmt.Sprintf("%d; %d more may pass with kube-proxy's next sync",
		s.Differences, s.Passing)})
	for _, d := range s.First {
		rows = append(rows, []string{"", nft.Visible(d.String())})
	}
	if more := s.Differences - len(s.First); more > 0 {
		rows = append(rows, []string{"", fmt.Sprintf("and %d more", more)})
	}
	return rows
}

// shownUnserved is how many Services that a quota leaves out, and how many endpoints that do not answer, status names;
// get names more.
const shownUnserved = 5

// Works reports whether the daemon answers, has synced and is healthy.
func (d *DaemonStatus) Works() bool { return d.Reached && d.Ready && d.Healthy }

// Health is the daemon's state in a few words.
func (d *DaemonStatus) Health() string {
	switch {
	case !d.Reached:
		return "not reached: " + strings.Join(d.Problems, "; ")
	case !d.Ready && d.WaitingFor == "":
		return "has not synced since its start"
	case !d.Ready && d.Syncs > 0:
		return "has synced; it waits for " + nft.Visible(d.WaitingFor)
	case !d.Ready:
		return "has not synced since its start; it waits for " + nft.Visible(d.WaitingFor)
	case !d.Healthy:
		return "unhealthy: a change has waited for too long"
	case d.Shadow != nil:
		return "healthy, in the shadow mode: it compares with kube-proxy's rules and changes nothing"
	case !d.NodeEligible:
		return "healthy; load balancers should not send traffic here: the Node is going away or is missing"
	}
	return "healthy"
}
