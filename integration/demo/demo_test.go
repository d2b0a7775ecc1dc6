package main

import (
	"errors"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestKernelDemo takes all steps: what make run prints is true on this kernel.
func TestKernelDemo(t *testing.T) {
	lab.Require(t)
	var out strings.Builder
	if err := run(t.Context(), &out, lab.Program(t), "../../deploy/examples"); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for number, line := range strings.Split(out.String(), "\n") {
		if len(line) > 100 {
			t.Errorf("line %d has %d columns, want at most 100:\n%s", number+1, len(line), line)
		}
	}
	if lines := strings.Count(out.String(), "\n"); lines >= 60 {
		t.Errorf("%d lines, want less than 60", lines)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(withoutNumbers(string(readme)), withoutNumbers(strings.TrimSpace(out.String()))) {
		t.Errorf("README.md shows another output than this:\n%s", out.String())
	}
}

// What differs from run to run, and from machine to machine.
var (
	measured = regexp.MustCompile(`^\d+(\.\d+)?,?$`)
	release  = regexp.MustCompile(`Linux \S+:`)
)

// withoutNumbers replaces measurements and counts, and the widths of columns.
func withoutNumbers(text string) string {
	var b strings.Builder
	for _, line := range strings.Split(release.ReplaceAllString(text, "Linux N:"), "\n") {
		for _, field := range strings.Fields(line) {
			b.WriteString(measured.ReplaceAllString(field, "N") + " ")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestRunNamesWhatIsMissing(t *testing.T) {
	lab.Require(t)
	err := run(t.Context(), new(strings.Builder), "no/such/kube-nft", "../../deploy/examples")
	if err == nil || !strings.Contains(err.Error(), "start kube-nft: ") {
		t.Errorf("got %v, want an error that kube-nft could not be started", err)
	}
}

func TestCheckSpread(t *testing.T) {
	servers := []string{"a", "b", "c"}
	for _, tt := range []struct {
		name   string
		counts map[string]int
		want   string
	}{
		{"even", map[string]int{"a": 100, "b": 100, "c": 100}, ""},
		{"by chance", map[string]int{"a": 80, "b": 125, "c": 95}, ""},
		{"one silent", map[string]int{"a": 150, "b": 150}, "spread map[a:150 b:150]: chi-square 150.0, want at most 27.6"},
		{"a stranger", map[string]int{"a": 100, "b": 99, "c": 100, "d": 1},
			"answered by map[a:100 b:99 c:100 d:1], want [a b c] alone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := checkSpread(tt.counts, servers); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// at returns a probe that lasted from one time to another, in milliseconds since the change.
func at(changed time.Time, started, ended int, server string) probe {
	return probe{
		started: changed.Add(time.Duration(started) * time.Millisecond),
		ended:   changed.Add(time.Duration(ended) * time.Millisecond),
		server:  server,
	}
}

func TestObserve(t *testing.T) {
	now := time.Unix(1000, 0)
	failed := at(now, 1, 2, "")
	failed.err = errors.New("connection reset")
	for _, tt := range []struct {
		name   string
		probes []probe
		want   transition
		err    string
	}{
		{
			name: "follows",
			probes: []probe{at(now, -1, 1, leaving), at(now, 2, 4, leaving), at(now, 5, 6, "web-1"), at(now, 5, 7, joining),
				at(now, 8, 9, joining)},
			want: transition{joined: 7 * time.Millisecond, left: 2 * time.Millisecond, probes: 5},
		},
		{"lost", []probe{at(now, 1, 2, joining), failed}, transition{},
			"a request failed while endpoints changed: connection reset"},
		{"never", []probe{at(now, 1, 2, leaving)}, transition{}, "web-4 never answered"},
		{"late", []probe{at(now, 1, 2, joining), at(now, 3, 4, leaving)}, transition{},
			"web-3 was reached 3.0 ms after the change, web-4 answered after 2.0 ms already"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := observe(now, tt.probes)
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Errorf("got error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

func TestParseAnswer(t *testing.T) {
	want := answer{server: "web-1", client: netip.MustParseAddr("fd00::1")}
	if got, err := parseAnswer("web-1 fd00::1"); err != nil || got != want {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for _, body := range []string{"", "web-1", "web-1 somewhere"} {
		if got, err := parseAnswer(body); err == nil {
			t.Errorf("%q: got %v, want an error", body, got)
		}
	}
}
