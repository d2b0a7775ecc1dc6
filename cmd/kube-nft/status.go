package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/nft"
)

// A status is what the command of that name prints.
type status struct {
	// Generation is the number of the latest commit to nf_tables in this network namespace.
	Generation uint32        `json:"generation"`
	Tables     []tableStatus `json:"tables"`
	Daemon     daemonStatus  `json:"daemon"`
}

func newStatus(o *options) *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Summarise what is programmed and how the daemon fares",
		Long: `status counts what the kernel holds in this network namespace and asks the daemon for its
health and its metrics, at the addresses that --healthz-bind-address and
--metrics-bind-address, or the file of --config, give it. Of a daemon that has not synced
since it was started it says what it waits for. It exits 0 whatever it finds, if the kernel
can be read.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmp.Or(f.check(), o.complete()); err != nil {
				return err
			}
			s, err := o.status(cmd.Context())
			if err != nil {
				return err
			}
			if f.value != formatTable {
				return f.document(cmd.OutOrStdout(), s)
			}
			return s.write(cmd.OutOrStdout(), time.Now())
		},
	}
	f.addFlag(cmd, formatTable, formatJSON, formatYAML)
	return cmd
}

// status looks at the kernel and asks the daemon.
func (o *options) status(ctx context.Context) (*status, error) {
	i, err := inspect(ctx)
	if err != nil {
		return nil, err
	}
	defer i.close()
	s := &status{Generation: i.generation, Tables: []tableStatus{}}
	for _, f := range nft.Families {
		if table := i.tables[f]; table != nil {
			t, err := i.tableStatus(ctx, table)
			if err != nil {
				return nil, err
			}
			s.Tables = append(s.Tables, t)
		}
	}
	asker := daemonAsker{client: &http.Client{Timeout: daemonTimeout}, healthz: o.Healthz, metrics: o.Metrics}
	s.Daemon = asker.ask(ctx)
	return s, nil
}

// write prints the status for people.
func (s *status) write(w io.Writer, now time.Time) error {
	rows := [][]string{{"Kernel"}}
	if len(s.Tables) == 0 {
		rows[0] = append(rows[0], "not programmed: no table kube-nft in this network namespace")
	}
	for i := range s.Tables {
		rows[0] = append(rows[0], s.Tables[i].Family)
	}
	if len(s.Tables) > 0 {
		for _, line := range tableLines {
			rows = append(rows, line.row(s.Tables))
		}
	}
	rows = append(rows, []string{"Generation", strconv.FormatUint(uint64(s.Generation), 10)}, []string{""})
	rows = append(rows, s.Daemon.rows(now)...)
	for _, row := range rows {
		if _, err := fmt.Fprintln(w, strings.TrimRight(statusRow(row), " ")); err != nil {
			return err
		}
	}
	return nil
}

// statusRow aligns the cells of a row; the last one may be as long as it likes.
func statusRow(cells []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-20s", cells[0])
	for i, cell := range cells[1:] {
		if i < len(cells)-2 {
			fmt.Fprintf(&b, "%-10s", cell)
			continue
		}
		b.WriteString(wrap(cell, 80, strings.Repeat(" ", 20)))
	}
	return strings.TrimSuffix(b.String(), "\n")
}
