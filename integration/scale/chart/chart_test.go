package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestResults draws the results of this repository, in which every row was measured.
func TestResults(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../results")); err != nil {
		t.Fatal(err)
	}
	for _, f := range figures {
		os.Remove(filepath.Join(dir, f.file))
	}
	if err := run(dir); err != nil {
		t.Fatal(err)
	}
	for _, f := range figures {
		drawn, err := os.ReadFile(filepath.Join(dir, f.file))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range append(f.rows, f.floors...) {
			if !strings.Contains(string(drawn), name) {
				t.Errorf("%s does not show %s", f.file, name)
			}
		}
	}
}

// TestChartWithMissingRows draws what was measured of a few rows alone.
func TestChartWithMissingRows(t *testing.T) {
	dir := t.TempDir()
	const text = "goos: linux\nBenchmarkScale/first-packet-of-a-connection/services=1000/endpoints=10 1 1e-06 sec/op\n" +
		"BenchmarkScale/first-packet-of-a-connection/services=5000/endpoints=50 1 2e-06 sec/op\n"
	if err := os.WriteFile(filepath.Join(dir, "bench.txt"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(dir); err != nil {
		t.Error(err)
	}
	r, err := read(strings.NewReader(text))
	if err != nil || len(r.services) != 1 || r.rows["first-packet-of-a-connection"][1000] != 1e-6 {
		t.Errorf("got %v, %v", r, err)
	}
	const want = `"BenchmarkScale/x": unexpected EOF`
	if _, err := read(strings.NewReader("BenchmarkScale/x\n")); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
