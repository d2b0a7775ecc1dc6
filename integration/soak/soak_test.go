package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

func TestParseUsage(t *testing.T) {
	const text = "# HELP go_goroutines Number\ngo_goroutines 42\nprocess_open_fds 17\nprocess_resident_memory_bytes " +
		"3.5e+07\n"
	got, err := parseUsage(strings.NewReader(text))
	if want := (usage{goroutines: 42, descriptors: 17, memory: 35e6}); err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for text, want := range map[string]string{
		"go_goroutines 42\n": "the metrics do not say what the process uses",
		"go_goroutines x\n":  `metric go_goroutines: strconv.ParseFloat: parsing "x": invalid syntax`,
	} {
		if _, err := parseUsage(strings.NewReader(text)); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func TestLeak(t *testing.T) {
	grow := func(each usage) (samples []usage) {
		for i := range 30 {
			n := float64(i)
			samples = append(samples, usage{40 + n*each.goroutines, 20 + n*each.descriptors, 40<<20 + n*each.memory})
		}
		return samples
	}
	for _, tt := range []struct {
		samples []usage
		want    string
	}{
		{nil, "<nil>"},
		{grow(usage{goroutines: 100})[:2], "<nil>"},
		{grow(usage{}), "<nil>"},
		{grow(usage{goroutines: 0.4, descriptors: 0.3, memory: 1 << 20}), "<nil>"},
		{grow(usage{goroutines: 1}), "goroutines grow from 45 to 65"},
		{grow(usage{descriptors: 1}), "descriptors grow from 25 to 45"},
		{grow(usage{memory: 3 << 20}), "memory grows from 55.0 MiB to 115.0 MiB"},
	} {
		if got := fmt.Sprint(leak(tt.samples)); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

// TestSoak runs one cycle of the program, and one with -chaos.
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	lab.Require(t)
	for _, program := range []string{"nft", "unshare", "go"} {
		if _, err := exec.LookPath(program); err != nil {
			lab.SkipOrFail(t, "%v", err)
		}
	}
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	binary := lab.Program(t)
	for name, chaos := range map[string]bool{"soak": false, "chaos": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := exec.Command(filepath.Join(dir, "soak"), "-binary", binary, "-duration", "4s", "-cycle", "4s",
				"-services", "50", "-seed", "1", fmt.Sprintf("-chaos=%t", chaos)).CombinedOutput()
			if err != nil || !strings.HasSuffix(string(out), "as expected\n") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
