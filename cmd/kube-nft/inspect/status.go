package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/firewall"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/words"
)

// A Status is what the command status prints.
type Status struct {
	metav1.TypeMeta
	// Generation is the number of the latest commit to nf_tables in this network namespace.
	Generation uint32        `json:"generation"`
	Tables     []TableStatus `json:"tables"`
	// Services is the number of Services in the tables of both families together.
	Services int `json:"services"`
	// ForeignProxy lists the places where kube-proxy has rules as well.
	ForeignProxy []string `json:"foreignProxy,omitempty"`
	// Forward lists what refuses connections to endpoints: rules of other programs, and kernel parameters.
	Forward []firewall.Finding `json:"forward,omitempty"`
	// ForwardUnknown is why it is not known whether there is more.
	ForwardUnknown string       `json:"forwardUnknown,omitempty"`
	Daemon         DaemonStatus `json:"daemon"`
}

func newStatus() *cobra.Command {
	var f output.Form
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Summarise the rules in the kernel and the state of the daemon",
		Long: `status counts the objects in the kernel's tables of this network namespace, and asks the daemon
for its state over its socket file in /run/kube-nft, which only root and the daemon's own user can
use. If the daemon has not synced since its start, status prints what the daemon waits for. If the
daemon has --mode=shadow, status prints the differences between kube-proxy's rules and kube-nft's.

It exits 0 if the daemon answers, has synced since its start and is healthy; 1 if not; 2 if
the kernel cannot be read.`,
		Example: "  kube-nft status\n  kube-nft status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := readStatus(cmd.Context())
			if err != nil {
				return TroubleError{err}
			}
			if f.Value != output.Table {
				err = f.Write(cmd.OutOrStdout(), s)
			} else {
				err = s.write(cmd.OutOrStdout(), time.Now())
			}
			if err == nil && !s.Daemon.Works() {
				return ErrUnhealthy
			}
			return err
		},
	}
	f.AddFlag(cmd, output.Table, output.JSON, output.YAML)
	return cmd
}

// ErrUnhealthy is the result of a status that has printed why the daemon does not work.
var ErrUnhealthy = errors.New("the daemon is not healthy")

// readStatus looks at the kernel and asks the daemon.
func readStatus(ctx context.Context) (*Status, error) {
	i, err := look(ctx)
	if err != nil {
		return nil, err
	}
	defer i.close()
	s := &Status{TypeMeta: output.Kind("Status"), Generation: i.generation, Tables: []TableStatus{}}
	names := make(map[string]bool)
	for _, f := range nft.Families {
		if table := i.tables[f]; table != nil {
			t, err := i.tableStatus(ctx, table)
			if err != nil {
				return nil, err
			}
			s.Tables = append(s.Tables, t)
			for _, f := range table.Frontends() {
				names[f.Name.Namespace+"/"+f.Name.Name] = true
			}
		}
	}
	s.Services = len(names)
	targets, mark := i.targets()
	if s.Forward, err = firewall.Look(ctx, i.kernel, targets, mark); err != nil {
		s.ForwardUnknown = err.Error()
	}
	s.Daemon = askDaemon(ctx, time.Now())
	// A daemon with --service-proxy-name or --mode=shadow works beside another proxy.
	beside := s.Daemon.Settings["service-proxy-name"] != "" || s.Daemon.shadows()
	if watch, err := legacy.NewWatch(); err == nil && !beside {
		defer watch.Close()
		s.ForeignProxy, _ = watch.Look(ctx) // what cannot be read does not keep the rest from being shown
	}
	return s, nil
}

// write prints the status for people, the daemon's health first. Cells are aligned; the last cell of a row may have any
// length.
func (s *Status) write(w io.Writer, now time.Time) error {
	rows := [][]string{{"Kernel"}}
	if len(s.Tables) == 0 {
		text := "not programmed: no table kube-nft in this network namespace"
		if s.Daemon.shadows() {
			text += ", as with --mode=shadow"
		}
		rows[0] = append(rows[0], text)
	} else {
		rows = tableRows(s.Tables)
	}
	if len(s.ForeignProxy) > 0 {
		rows = append(rows,
			[]string{"kube-proxy", "has rules on this node as well, in " + strings.Join(s.ForeignProxy, ", ") +
				": they can refuse connections; keep it off this node, then remove them with kube-nft migrate apply"})
	}
	head := "Firewall"
	for _, f := range s.Forward {
		rows = append(rows, []string{head, f.String() + ". Do: " + f.Remedy})
		head = ""
	}
	if s.ForwardUnknown != "" {
		rows = append(rows, []string{head, "not known: " + s.ForwardUnknown})
	}
	rows = append(rows, []string{"Generation", strconv.FormatUint(uint64(s.Generation), 10)})
	rows = slices.Concat(s.Daemon.rows(now), [][]string{{""}}, rows)
	for _, cells := range rows {
		last := len(cells) - 1
		line := fmt.Sprintf("%-20s", cells[0])
		for _, cell := range cells[min(1, last):last] {
			line += fmt.Sprintf("%-10s", cell)
		}
		if last > 0 {
			line += words.Wrap(cells[last], 80, strings.Repeat(" ", 20))
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}
