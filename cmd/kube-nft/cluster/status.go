package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
)

func newStatus(c *connection) *cobra.Command {
	var form output.Form
	cmd := &cobra.Command{
		Use:   "status [NODE]...",
		Short: "Print a line for each node: whether kube-nft serves there",
		Long: `status asks kube-nft on the given nodes, or on all Linux nodes, and prints a line for each:
the version, what the daemon does, the age of its last commit, and what its tables hold. Nodes
without a pod, and those that do not answer, have a line as well.

It exits 0 if kube-nft serves on all of them, 1 if not, and 2 if it could not look.`,
		Example: `  kubectl kube-nft status
  kubectl kube-nft status worker-1 worker-2
  kubectl kube-nft status -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := form.Check(); err != nil {
				return err
			}
			cluster, err := c.connect(cmd.Flags())
			if err != nil {
				return inspect.TroubleError{Err: err}
			}
			members, err := cluster.members(cmd.Context(), names, c.selector)
			if err != nil {
				return inspect.TroubleError{Err: err}
			}
			rows := cluster.statuses(cmd.Context(), members)
			if form.Document() {
				err = form.Write(cmd.OutOrStdout(), output.NewList("NodeStatus", rows))
			} else {
				err = writeStatuses(cmd.OutOrStdout(), rows, time.Now())
			}
			if slices.ContainsFunc(rows, func(s nodeStatus) bool { return !s.Serves }) {
				err = cmp.Or(err, inspect.ErrUnhealthy)
			}
			return err
		},
	}
	form.AddFlag(cmd, output.Table, output.JSON, output.YAML)
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

// statuses asks the members.
func (c *cluster) statuses(ctx context.Context, members []member) []nodeStatus {
	rows := make([]nodeStatus, len(members))
	for i, m := range members {
		r := &rows[i]
		r.Node = m.node.Name
		r.Pod, r.State = m.state()
	}
	c.ask(ctx, members, func(ctx context.Context, i int, pod *corev1.Pod) {
		r := &rows[i]
		status := new(inspect.Status)
		if err := c.decode(ctx, pod, status, "status", "-o", "json"); err != nil {
			r.State = cmp.Or(r.State, err.Error())
			return
		}
		r.Status = status
		r.Serves = status.Daemon.Works()
		notes := []string{cmp.Or(r.State, status.Daemon.Health())}
		if d := status.Daemon; d.Status != nil && d.Settings["service-proxy-name"] != "" {
			notes = append(notes, trial(d.Settings["service-proxy-name"]))
		}
		if len(status.ForeignProxy) > 0 {
			notes = append(notes, "kube-proxy has rules here as well")
		}
		for _, f := range status.Forward {
			notes = append(notes, f.Where+" refuses connections to endpoints")
		}
		r.State = strings.Join(notes, "; ")
	})
	return rows
}

// writeStatuses prints the rows for people, and totals.
func writeStatuses(w io.Writer, rows []nodeStatus, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tVERSION\tLAST SYNC\tSERVICES\tENDPOINTS\tCONFLICTS\tREPAIRS\tSTATE")
	serving, versions := 0, make(map[string]int)
	for _, r := range rows {
		if r.Serves {
			serving++
		}
		cells := []string{r.Node, "-", "-", "-", "-", "-", "-", r.State}
		if r.Status != nil {
			services, endpoints := 0, 0
			for _, t := range r.Status.Tables { // one for each family
				services, endpoints = max(services, t.Services), endpoints+t.Endpoints
			}
			services = max(services, r.Status.Services) // versions before 0.2 do not have it
			cells[3], cells[4] = fmt.Sprint(services), fmt.Sprint(endpoints)
			if d := r.Status.Daemon; d.Status != nil {
				versions[d.Version]++
				cells[1], cells[5], cells[6] = d.Version, fmt.Sprint(d.Conflicts), fmt.Sprint(d.Repairs)
				if !d.LastSync.IsZero() {
					cells[2] = now.Sub(d.LastSync).Round(time.Second).String()
				}
			}
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	text := fmt.Sprintf("\nkube-nft serves on %d of %d nodes", serving, len(rows))
	if len(versions) > 1 {
		text += fmt.Sprintf("; there are %d versions of it", len(versions))
	}
	err := table.Flush()
	_, textErr := fmt.Fprintln(w, text)
	return errors.Join(err, textErr)
}
