package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"text/tabwriter"
)

// requests is how many are sent to a frontend.
const requests = 300

// A way is how a client gets to a Service, and the client address that the servers behind
// it should see.
type way struct {
	from   string
	client *host
	to     string
	target string
	seen   netip.Addr
	whose  string
}

// A spreadTable prints how requests spread over servers, and checks it.
type spreadTable struct {
	servers []string
	columns *tabwriter.Writer
}

func newSpreadTable(out io.Writer, servers ...string) *spreadTable {
	t := &spreadTable{servers: servers, columns: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	fmt.Fprint(t.columns, "   from\tto\t\t")
	for _, server := range servers {
		fmt.Fprintf(t.columns, "%s\t", server)
	}
	fmt.Fprintln(t.columns, "client address seen")
	return t
}

// row sends requests by one way and adds their spread to the table.
func (t *spreadTable) row(ctx context.Context, w way) error {
	counts := make(map[string]int)
	for i := range requests {
		answer, err := w.client.get(ctx, w.target)
		if err != nil {
			return fmt.Errorf("request %d of %d from %s to %s: %w", i+1, requests, w.from, w.target, err)
		}
		if answer.client != w.seen {
			return fmt.Errorf("%s sees client address %s of the %s, want %s (%s)", answer.server, answer.client, w.from,
				w.seen, w.whose)
		}
		counts[answer.server]++
	}
	if err := checkSpread(counts, t.servers); err != nil {
		return fmt.Errorf("requests to %s: %w", w.target, err)
	}
	fmt.Fprintf(t.columns, "   %s\t%s\t%s\t", w.from, w.to, w.target)
	for _, server := range t.servers {
		fmt.Fprintf(t.columns, "%5d\t", counts[server])
	}
	fmt.Fprintf(t.columns, "%s (%s)\n", w.seen, w.whose)
	return nil
}

func (t *spreadTable) flush() error { return t.columns.Flush() }

// maxChiSquare bounds the chi-square statistic of a uniform spread over three servers, two
// degrees of freedom: a fair choice exceeds it once in a million, exp(-27.6/2).
const maxChiSquare = 27.6

// checkSpread returns an error unless counts is a plausible outcome of a uniform choice
// among three servers.
func checkSpread(counts map[string]int, servers []string) error {
	total, inside := 0, 0
	for _, n := range counts {
		total += n
	}
	expected := float64(total) / float64(len(servers))
	sum := 0.0
	for _, server := range servers {
		inside += counts[server]
		deviation := float64(counts[server]) - expected
		sum += deviation * deviation / expected
	}
	if inside != total {
		return fmt.Errorf("answered by %v, want %v alone", counts, servers)
	}
	if sum > maxChiSquare {
		return fmt.Errorf("spread %v: chi-square %.1f, want at most %.1f", counts, sum, maxChiSquare)
	}
	return nil
}
