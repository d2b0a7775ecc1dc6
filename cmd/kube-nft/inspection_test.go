package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
)

var update = flag.Bool("update", false, "rewrite testdata/inspection/*.golden")

// inspectionSource are the flags of a node of the cluster in testdata.
var inspectionSource = []string{
	"--manifests", "testdata/inspection/cluster.yaml", "--hostname-override", "node-1",
	"--cluster-cidr", "10.244.0.0/16,fd44::/16", "--log-level", "error",
}

// kubeNFT runs a command line on the calling goroutine.
func kubeNFT(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = execute(t.Context(), newRoot(), args, &out, &err)
	return code, out.String(), err.String()
}

// program loads the cluster of testdata into a namespace of the test's own, and makes one
// client with an entry by way of both lists of endpoints.
func program(t *testing.T) {
	t.Helper()
	lab.New(t)
	if err := lab.Forward(); err != nil { // else explain and status say so
		t.Fatal(err)
	}
	code, ruleset, stderr := kubeNFT(t, append(inspectionSource, "--dry-run")...)
	if code != exitOK {
		t.Fatal(stderr)
	}
	lab.Run(t, ruleset, "nft", "-f", "-")
	for _, entry := range []string{
		"270661608 . 10.244.0.9 timeout 1d : 10.244.1.5", // the numbers of shop/web:http
		"270661609 . 10.244.0.9 timeout 1d : 10.244.0.5",
	} {
		lab.Run(t, "", "nft", "add", "element", "ip", "kube-nft", "affinity-52", "{ "+entry+" }")
	}
}

// checkGolden compares what a command printed with a file.
func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "inspection", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; make golden writes it", err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// checkWidth holds the text for people against the width of a terminal.
func checkWidth(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// A usage is a command line that cannot be meant, and the line that says so.
type usage struct {
	args []string
	want string
}

// checkUsage holds that the command says one line and ends with exit code 2, before it asks
// the kernel anything.
func checkUsage(t *testing.T, usages []usage) {
	t.Helper()
	for _, tt := range usages {
		code, stdout, stderr := kubeNFT(t, tt.args...)
		command, _, err := newRoot().Find(tt.args)
		if err != nil {
			t.Fatal(err)
		}
		want := "kube-nft: " + tt.want + "; see " + command.CommandPath() + " --help\n"
		if code != exitUsage || stdout != "" || stderr != want {
			t.Errorf("%q: exit %d, %q on stdout, on stderr\n%swant\n%s", tt.args, code, stdout, stderr, want)
		}
	}
}
