package cluster

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft/words"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// minWatchInterval bounds how often status -w asks all nodes.
const minWatchInterval = time.Second

func newStatus(c *connection) *cobra.Command {
	var form output.Form
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "status [NODE]...",
		Short: "Print a line for each node: whether kube-nft serves there",
		Long: `status asks kube-nft on the given nodes, or on all Linux nodes, and prints a line for each. Nodes
without a pod, and those that do not answer, have a line as well.

HEALTHY says whether changes reach the kernel in time. IN SYNC is the age of the last commit, if no
change waits for too long. REFUSALS counts what objects ask for and the node does not serve now:
ports, annotations, health checks, and Services over their quota. REPAIRS counts how often other
programs changed kube-nft's tables since the daemon's start. STATE names what the daemon waits for,
rules of kube-proxy on the node, and firewalls that refuse connections to endpoints. -o wide has more
columns.

With -w, status goes on, and prints the line of a node again when it changes; with -o json, a
document on a line of its own.

It exits 0 if kube-nft serves on all of these nodes, 1 if not, and 2 if status could not reach the
API server or the nodes. With -w, the exit code says what the last look found.`,
		Example: `  kubectl kube-nft status
  kubectl kube-nft status worker-1 worker-2 -o wide
  kubectl kube-nft status -o json
  kubectl kube-nft status -w`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: c.nodeNames,
		RunE: func(cmd *cobra.Command, names []string) error {
			switch {
			case interval < minWatchInterval:
				return config.Usagef("--interval %s: expected %s or more", interval, minWatchInterval)
			case watch && form.Value == output.YAML:
				return config.Usagef("--watch: expected --output table, wide or json")
			}
			cluster, members, err := c.open(cmd, names)
			if err != nil {
				return err
			}
			rows, err := cluster.statuses(cmd.Context(), members)
			if err != nil {
				return err
			}
			switch {
			case watch:
				w := statusWatch{form: &form, out: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(),
					shown: make(map[string]string)}
				rows, err = w.follow(cmd.Context(), cluster, names, c.selector, interval, rows)
			case form.Document():
				err = form.Write(cmd.OutOrStdout(), output.NewList("NodeStatus", rows))
			default:
				err = writeStatuses(cmd.OutOrStdout(), rows, form.Value == output.Wide, time.Now())
			}
			if slices.ContainsFunc(rows, func(s nodeStatus) bool { return !s.Serves }) {
				err = cmp.Or(err, inspect.ErrUnhealthy)
			}
			return err
		},
	}
	form.AddFlag(cmd, output.Table, output.Wide, output.JSON, output.YAML)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on, and print the line of a node again when it changes")
	cmd.Flags().DurationVar(&interval, "interval", 5*time.Second, "with --watch, the time between two looks at all nodes")
	return cmd
}

// A nodeStatus is what status prints of a node.
type nodeStatus struct {
	Node   string `json:"node"`
	Pod    string `json:"pod,omitempty"`
	Serves bool   `json:"serves"`
	State  string `json:"state"` // in a few words
	// Status is what kube-nft status prints there; nil without an answer.
	Status *inspect.Status `json:"status,omitempty"`
}

// A watchedStatus is a nodeStatus as status -w -o json prints it.
type watchedStatus struct {
	metav1.TypeMeta
	nodeStatus
}

// statuses asks the members. It returns an error if the user may not ask.
func (c *cluster) statuses(ctx context.Context, members []member) ([]nodeStatus, error) {
	rows := make([]nodeStatus, len(members))
	for i, m := range members {
		r := &rows[i]
		r.Node = m.node.Name
		if len(m.pods) > 0 {
			r.Pod = m.pods[0].Name
		}
		_, r.State = m.state()
	}
	return rows, c.ask(ctx, members, func(ctx context.Context, i int, pod *corev1.Pod) error {
		r := &rows[i]
		status := new(inspect.Status)
		if err := c.decode(ctx, pod, status, "status", "-o", "json"); err != nil {
			r.State = cmp.Or(r.State, err.Error())
			return err
		}
		r.Status = status
		r.Serves = status.Daemon.Works() && status.Daemon.Shadow == nil
		notes := []string{cmp.Or(r.State, status.Daemon.Health())}
		d := status.Daemon
		if name := d.Settings["service-proxy-name"]; name != "" {
			notes = append(notes, trial(name))
		}
		if len(status.ForeignProxy) > 0 {
			notes = append(notes, "kube-proxy has rules here as well")
		}
		for _, f := range status.Forward {
			verb := " refuses"
			if f.Unless != "" {
				verb = " may refuse"
			}
			notes = append(notes, f.Where+verb+" connections to endpoints")
		}
		if d.Status != nil && d.Shadow != nil {
			notes = append(notes, words.Plural(d.Shadow.Differences, "difference")+" among "+
				words.Plural(d.Shadow.Frontends, "frontend"))
		}
		if d.Status != nil && d.EjectedEndpoints > 0 {
			notes = append(notes, words.Plural(d.EjectedEndpoints, "endpoint")+" without an answer")
		}
		r.State = strings.Join(notes, "; ")
		return nil
	})
}

// statusHeads are the columns of people; the rest is for -o wide.
var statusHeads = []string{"NODE", "VERSION", "HEALTHY", "IN SYNC", "SERVICES", "ENDPOINTS", "REFUSALS", "CONFLICTS",
	"REPAIRS"}

// wideHeads are the columns of -o wide before the state.
var wideHeads = []string{"POD", "UP", "SYNCS", "FAILED", "UNSERVED", "EJECTED", "KUBE-PROXY", "FORWARD"}

// cells returns the row of a node for people. With a zero now they have no ages, nor the number of syncs: then they are
// the same as long as nothing changes.
func (s *nodeStatus) cells(wide bool, now time.Time) []string {
	cells := append([]string{s.Node}, slices.Repeat([]string{"-"}, len(statusHeads)-1)...)
	more := append([]string{cmp.Or(s.Pod, "-")}, slices.Repeat([]string{"-"}, len(wideHeads)-1)...)
	yesOrNo := func(yes bool) string {
		if yes {
			return "yes"
		}
		return "no"
	}
	if s.Status != nil {
		services, endpoints := 0, 0
		for _, t := range s.Status.Tables { // one for each family
			services, endpoints = max(services, t.Services), endpoints+t.Endpoints
		}
		services = max(services, s.Status.Services) // versions before 0.2 do not have it
		cells[4], cells[5] = fmt.Sprint(services), fmt.Sprint(endpoints)
		cells[2] = "no"
		foreign := len(s.Status.ForeignProxy) > 0
		if d := s.Status.Daemon; d.Status != nil && d.Shadow != nil {
			foreign = d.Shadow.Frontends > 0
		}
		more[6], more[7] = yesOrNo(foreign), fmt.Sprint(len(s.Status.Forward))
	}
	if s.Status != nil && s.Status.Daemon.Status != nil {
		d := &s.Status.Daemon
		refusals := d.SkippedPorts + d.UnmetAnnotations + d.UnservedServices + d.UnservedChecks
		cells[1], cells[2] = d.Version, yesOrNo(d.Works())
		cells[6], cells[7], cells[8] = fmt.Sprint(refusals), fmt.Sprint(d.Conflicts), fmt.Sprint(d.Repairs)
		more[3] = fmt.Sprint(d.SyncFailures)
		more[4], more[5] = fmt.Sprint(d.UnservedServices), fmt.Sprint(d.EjectedEndpoints)
		if !now.IsZero() && d.Started != nil {
			more[1], more[2] = age(now, *d.Started), fmt.Sprint(d.Syncs)
		}
		if !now.IsZero() && d.Works() && !d.LastSync.IsZero() {
			cells[3] = age(now, d.LastSync)
		}
	}
	if wide {
		cells = append(cells, more...)
	}
	return append(cells, s.State)
}

// age is the time since a moment by the clock of a node, which may be ahead of ours, as kubectl writes it.
func age(now, since time.Time) string { return duration.HumanDuration(max(0, now.Sub(since))) }

// heads returns the heads of the columns.
func heads(wide bool) []string {
	list := slices.Clone(statusHeads)
	if wide {
		list = append(list, wideHeads...)
	}
	return append(list, "STATE")
}

// writeStatuses prints the rows for people, and totals.
func writeStatuses(w io.Writer, rows []nodeStatus, wide bool, now time.Time) error {
	lines := [][]string{heads(wide)}
	for i := range rows {
		lines = append(lines, rows[i].cells(wide, now))
	}
	_, err := io.WriteString(w, output.Align(lines)+"\n"+totals(rows))
	return err
}

// totals says on how many nodes kube-nft serves, which do not answer, and which have another version than most.
func totals(rows []nodeStatus) string {
	serving := 0
	var noPod, silent, shadow, otherwise []string
	byVersion := make(map[string][]string)
	for _, r := range rows {
		switch {
		case r.Serves:
			serving++
		case r.Pod == "":
			noPod = append(noPod, r.Node)
		case r.Status == nil:
			silent = append(silent, r.Node)
		case r.Status.Daemon.Works():
			shadow = append(shadow, r.Node)
		default:
			otherwise = append(otherwise, r.Node)
		}
		if r.Status != nil && r.Status.Daemon.Status != nil {
			byVersion[r.Status.Daemon.Version] = append(byVersion[r.Status.Daemon.Version], r.Node)
		}
	}
	text := fmt.Sprintf("kube-nft serves on %d of %s\n", serving, words.Plural(len(rows), "node"))
	for _, group := range []struct {
		what  string
		nodes []string
	}{{"without a pod", noPod}, {"without an answer", silent}, {"in the shadow mode", shadow},
		{"not serving", otherwise}} {
		if len(group.nodes) > 0 {
			text += fmt.Sprintf("%s: %s\n", group.what, some(group.nodes))
		}
	}
	if len(byVersion) < 2 {
		return text
	}
	versions := slices.SortedFunc(maps.Keys(byVersion), func(a, b string) int { // the most frequent first
		return cmp.Or(len(byVersion[b])-len(byVersion[a]), strings.Compare(a, b))
	})
	text += fmt.Sprintf("versions: %s on %s", versions[0], words.Plural(len(byVersion[versions[0]]), "node"))
	for _, v := range versions[1:] {
		text += fmt.Sprintf("; %s on %s", v, some(byVersion[v]))
	}
	return text + "\n"
}

// A statusWatch prints the rows that change.
type statusWatch struct {
	form *output.Form
	out  io.Writer
	// stderr has what keeps it from looking for a while.
	stderr io.Writer
	table  output.Alignment
	shown  map[string]string // by node, what its row said, without ages
}

// follow prints rows, looks again and again until ctx ends, and returns the last rows. Nodes may come and go, and the
// API server may be away for a while.
func (w *statusWatch) follow(ctx context.Context, c *cluster, names []string, selector string, interval time.Duration,
	rows []nodeStatus) ([]nodeStatus, error) {
	for first := true; ; first = false {
		if err := w.print(rows, first, time.Now()); err != nil {
			return rows, err
		}
		if !retry.Pause(ctx, interval) {
			return rows, nil
		}
		var now []nodeStatus
		members, err := c.members(ctx, names, selector)
		if err == nil {
			now, err = c.statuses(ctx, members)
		}
		switch {
		case ctx.Err() != nil: // nodes that were interrupted have no answer
			return rows, nil
		case apierrors.IsForbidden(err):
			return rows, err
		case err != nil:
			fmt.Fprintln(w.stderr, "could not look: "+err.Error())
		default:
			rows = now
		}
	}
}

// print prints the rows that say something else than before, and those of nodes that have gone.
func (w *statusWatch) print(rows []nodeStatus, first bool, now time.Time) error {
	wide := w.form.Value == output.Wide
	gone := maps.Clone(w.shown)
	var changed []nodeStatus
	for i := range rows {
		r := &rows[i]
		delete(gone, r.Node)
		text := strings.Join(r.cells(true, time.Time{}), "\t")
		if before, known := w.shown[r.Node]; !known || before != text {
			w.shown[r.Node] = text
			changed = append(changed, *r)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		delete(w.shown, name)
		changed = append(changed, nodeStatus{Node: name, State: "there is no such node any more"})
	}
	var lines [][]string
	if first {
		lines = [][]string{heads(wide)}
	}
	for i := range changed {
		if !w.form.Document() {
			lines = append(lines, changed[i].cells(wide, now))
			continue
		}
		if err := output.WriteLine(w.out, &watchedStatus{output.Kind("NodeStatus"), changed[i]}); err != nil {
			return err
		}
	}
	if w.form.Document() || len(lines) == 0 {
		return nil
	}
	_, err := io.WriteString(w.out, w.table.Lines(lines))
	return err
}
