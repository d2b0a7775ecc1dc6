package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft/migrate"
	"github.com/kube-nft/kube-nft/nft/words"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// ErrNoGo is the result of a check that has printed what stands in the way.
var ErrNoGo = errors.New("kube-proxy must not stop yet")

func newCheck(c *connection) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "check [NODE]...",
		Short: "Say whether kube-proxy may stop, or why not",
		Long: `check looks at the given nodes, or at all Linux nodes: whether each is ready and has a pod of
kube-nft whose container runs, with its image, whether the daemon there waits for kube-proxy to
end, or serves already, and what migrate plan says on that node.

Run it between the installation of kube-nft and the command that stops kube-proxy, and once more when
kube-proxy has stopped: then it says whether kube-nft serves on all of them. With --wait it looks again
and again, until it can say go. Its last line begins with go or no go. It exits 0 for
go, 1 for no go, and 2 if it could not look.`,
		Example: `  kubectl kube-nft check --wait 5m
  kubectl kube-nft check worker-1
  kubectl kube-nft check -l service-proxy=next`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: c.nodeNames,
		RunE: func(cmd *cobra.Command, names []string) error {
			cluster, err := c.connect(cmd.Flags())
			if err != nil {
				return err
			}
			rows, err := cluster.checkUntil(cmd.Context(), time.Now().Add(wait), names, c.selector, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return rows.write(cmd.OutOrStdout())
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to look again, until all nodes are ready or a plan has blocks")
	return cmd
}

// checkPause is the pause between two looks.
const checkPause = 2 * time.Second

// checkUntil looks at nodes until kube-proxy may stop, until a plan has blocks, which waiting does not change, or until
// the deadline. It writes to progress which node it waits for.
func (c *cluster) checkUntil(ctx context.Context, deadline time.Time, names []string, selector string,
	progress io.Writer) (checks, error) {
	for last := ""; ; {
		members, err := c.members(ctx, names, selector)
		if err != nil {
			return nil, err
		}
		rows, err := c.check(ctx, members)
		if err != nil {
			return nil, err
		}
		blocks := func(r checked) bool { return r.planned && !r.plan.Ready }
		waits := func(r checked) bool { return !r.ready() }
		if !slices.ContainsFunc(rows, waits) || slices.ContainsFunc(rows, blocks) ||
			time.Now().Add(checkPause).After(deadline) || !retry.Pause(ctx, checkPause) {
			return rows, nil
		}
		i := slices.IndexFunc(rows, waits)
		if text := fmt.Sprintf("waiting for %s: %s", rows[i].node, rows[i].state); text != last {
			fmt.Fprintln(progress, text)
			last = text
		}
	}
}

// checks are the results of check, one for each node.
type checks []checked

// A checked node.
type checked struct {
	node, pod string
	state     string // of the daemon, or of the pod if it does not run
	problem   bool   // state stands in the way
	serves    bool   // kube-nft serves, and kube-proxy has no rules there
	planned   bool   // plan is there
	plan      migrate.Plan
}

// ready reports whether kube-proxy may stop on the node.
func (r *checked) ready() bool { return !r.problem && r.planned && r.plan.Ready && r.plan.Complete }

// check looks at the members.
func (c *cluster) check(ctx context.Context, members []member) (checks, error) {
	rows := make(checks, len(members))
	for i, m := range members {
		r := &rows[i]
		r.node = m.node.Name
		r.pod, r.state = m.state()
		r.problem = r.state != ""
	}
	err := c.ask(ctx, members, func(ctx context.Context, i int, pod *corev1.Pod) error {
		r := &rows[i]
		if !r.problem {
			r.state, r.problem, r.serves = c.daemonState(ctx, pod)
		}
		if err := c.decode(ctx, pod, &r.plan, "migrate", "plan", "-o", "json"); err != nil {
			r.state, r.problem = strings.TrimPrefix(r.state+"; migrate plan: "+err.Error(), "; "), true
			return err
		}
		r.planned = true
		return nil
	})
	return rows, err
}

// state returns the name of a member's pod, and what is wrong with the node or with one of its pods.
func (m *member) state() (name, problem string) {
	name = "-"
	if len(m.pods) > 0 {
		name = m.pods[0].Name
	}
	if problem = whyNotReady(m.node); problem != "" {
		return name, problem
	}
	if len(m.pods) == 0 {
		return name, "no pod of kube-nft: no DaemonSet of kube-nft in this namespace (-n) selects the node"
	}
	for i, pod := range m.pods {
		reason := whyNotRunning(pod)
		switch {
		case pod.DeletionTimestamp != nil && i == 0:
			return name, "the pod ends, and there is no other"
		case pod.DeletionTimestamp != nil || reason == "":
		case i == 0:
			return name, reason
		default:
			return name, "a newer pod, " + pod.Name + ", does not run: " + reason
		}
	}
	return name, ""
}

// daemonState asks the daemon in a pod what it does.
func (c *cluster) daemonState(ctx context.Context, pod *corev1.Pod) (state string, problem, serves bool) {
	var answer inspect.Status
	if err := c.decode(ctx, pod, &answer, "status", "-o", "json"); err != nil {
		return err.Error(), true, false
	}
	d := &answer.Daemon
	switch {
	case d.Status == nil:
		return "the daemon does not answer: " + strings.Join(d.Problems, "; "), true, false
	case d.Settings["service-proxy-name"] != "":
		return trial(d.Settings["service-proxy-name"]), true, false
	case d.Shadow != nil:
		return shadows(d.Shadow), true, false
	case d.AwaitsProxy:
		return "waits for kube-proxy to end", false, false
	case !d.Ready:
		return "waits for " + d.WaitingFor, true, false
	case !d.Healthy:
		return "unhealthy: a change has waited for too long", true, false
	}
	if len(answer.ForeignProxy) > 0 {
		return "serves; kube-proxy has rules here as well", false, false
	}
	return "serves", false, true
}

// shadows says what the shadow mode found, in which a daemon does not serve.
func shadows(s *peer.Shadow) string {
	text := "the shadow mode, which serves nothing: " + words.Plural(s.Differences, "difference") + " from kube-proxy"
	if s.Problem != "" {
		text += "; " + s.Problem
	}
	return text
}

// trial says that a daemon serves only the Services of a --service-proxy-name.
func trial(name string) string {
	return "a trial: it serves only Services with the label " + tracker.ProxyNameLabel + "=" + name
}

// write prints the rows, then the warnings and blocks of all nodes in groups, and the result.
func (rows checks) write(w io.Writer) error {
	lines := [][]string{{"NODE", "POD", "PLAN", "STATE"}}
	var against []string
	for i := range rows {
		r := &rows[i]
		lines = append(lines, []string{r.node, r.pod, r.summary(), r.state})
		if !r.ready() {
			against = append(against, r.node)
		}
	}
	if _, err := io.WriteString(w, output.Align(lines)); err != nil {
		return err
	}
	for _, level := range []migrate.Level{migrate.Blocks, migrate.Unknown, migrate.Warning} {
		for _, group := range rows.group(level) {
			fmt.Fprintf(w, "\n%s on %s: %s\n", level, some(group.nodes), group.check)
		}
	}
	if len(against) > 0 {
		_, err := fmt.Fprintf(w, "\nno go: kube-nft is not ready to serve alone on %s\n", some(against))
		return cmp.Or(err, ErrNoGo)
	}
	text := "kube-nft is ready on %s; kube-proxy may stop"
	if !slices.ContainsFunc(rows, func(r checked) bool { return !r.serves }) {
		text = "kube-nft serves on %s" // after a migration
	}
	_, err := fmt.Fprintf(w, "\ngo: "+text+"\n", words.Plural(len(rows), "node"))
	return err
}

// summary counts what a plan says.
func (r *checked) summary() string {
	if !r.planned {
		return "-"
	}
	counts := make(map[migrate.Level]int)
	for _, check := range r.plan.Checks {
		counts[check.Level]++
	}
	text := words.Plural(counts[migrate.Warning], "warning") + ", " + words.Plural(counts[migrate.Blocks], "block")
	if !r.plan.Complete {
		text += ", incomplete"
	}
	return text
}

// A checkGroup is a check of a plan, and the nodes whose plans have it.
type checkGroup struct {
	check migrate.Check
	nodes []string
}

// group returns the checks of a level. Those that differ in what was found alone, as the number of a process, are one
// group.
func (rows checks) group(level migrate.Level) (groups []checkGroup) {
	for _, r := range rows {
		for _, check := range r.plan.Checks {
			if check.Level != level {
				continue
			}
			same := func(g checkGroup) bool {
				return g.check.About == check.About && g.check.Means == check.Means && !slices.Contains(g.nodes, r.node)
			}
			if i := slices.IndexFunc(groups, same); i >= 0 {
				groups[i].nodes = append(groups[i].nodes, r.node)
				continue
			}
			groups = append(groups, checkGroup{check, []string{r.node}})
		}
	}
	return groups
}

// shownNodes is how many nodes a line names.
const shownNodes = 10

// some names nodes, and counts the rest.
func some(nodes []string) string { return words.Some(nodes, shownNodes, ", ") }
