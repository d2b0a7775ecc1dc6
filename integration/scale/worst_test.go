package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

func TestComparison(t *testing.T) {
	var c comparison
	c.duration("one world", "start", 3*time.Second, 2*time.Second, times(2))
	c.duration("one world", "lag", 30*time.Millisecond, 10*time.Millisecond, times(1.5))
	c.add("another", "sets and maps", count, 61, nothing, most(60))
	c.add("another", "elements", count, 61, nothing, bar{})
	var table, bench bytes.Buffer
	c.writeTable(&table)
	c.writeBench(&bench)
	const wantTable = `| world | measured | hostile | friendly twin | ratio | must be |
|---|---|--:|--:|--:|---|
| one world | start | 3s | 2s | 1.50 | ratio at most 2 |
|  | lag | 30ms | 10ms | 3.00 | ratio at most 1.5 (**missed**) |
| another | sets and maps | 61 | | | at most 60 (**missed**) |
|  | elements | 61 | | |  |
`
	const wantBench = `BenchmarkWorst/one-world/start/hostile 1 3 sec/op
BenchmarkWorst/one-world/start/twin 1 2 sec/op
BenchmarkWorst/one-world/lag/hostile 1 0.03 sec/op
BenchmarkWorst/one-world/lag/twin 1 0.01 sec/op
BenchmarkWorst/another/sets-and-maps/hostile 1 61 count
BenchmarkWorst/another/elements/hostile 1 61 count
`
	if table.String() != wantTable || bench.String() != wantBench {
		t.Errorf("got\n%s\n%s", table.String(), bench.String())
	}
	dir := t.TempDir()
	if err := write(dir, nil, newSheet(nil), &c); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil || !strings.Contains(string(page), "\n## Worst cases\n") || !strings.Contains(string(page), wantTable) {
		t.Errorf("%v; the page does not show them:\n%s", err, page)
	}
}

// TestSourceRangesAreApart: a range that touches another one would become one with it.
func TestSourceRangesAreApart(t *testing.T) {
	const most = 200_000
	for i := 1; i < most; i++ {
		before, r := sourceRange(i-1), sourceRange(i)
		if r != r.Masked() || !before.Addr().Less(r.Addr()) || before.Contains(lab.After(r.Addr(), -1)) ||
			!rangesCIDR.Contains(r.Addr()) {
			t.Fatalf("%s and %s", before, r)
		}
	}
}

// TestWorstKernel plays the scenes that have no size of their own, as small as they get.
func TestWorstKernel(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	lab.Require(t)
	o := options{binary: lab.Program(t), runs: 1, share: 0.001, churn: 600 * time.Millisecond}
	var c comparison
	err := errors.Join(o.measureRangeChange(&c), o.measureFlows(&c), o.measureAffinity(&c))
	tenants := o.tenants()[2:4] // each takes seconds
	for _, tenant := range tenants {
		err = errors.Join(err, o.measureTenant(&c, tenant))
	}
	if err != nil {
		t.Error(err)
	}
	if len(c.rows) != 15+7*len(tenants) {
		t.Errorf("%d rows: %+v", len(c.rows), c.rows)
	}
}
