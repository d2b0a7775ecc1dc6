package golden

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// update is a flag.
var update = flag.Bool("update", false, "rewrite the golden texts of the scenarios instead of comparing")

// emptyScenario is the one that shows the whole ruleset of an empty cluster; the others show
// what they differ in.
const emptyScenario = "empty"

// TestGolden plays every scenario and compares the ruleset and the batch of each step with
// those that were reviewed.
func TestGolden(t *testing.T) {
	base := emptyText(t)
	for _, s := range loadScenarios(t) {
		t.Run(s.name(), func(t *testing.T) {
			t.Parallel()
			before := s.String()
			if s.name() == emptyScenario {
				s.set("ruleset.nft", base, "flags")
			}
			p := s.start(t)
			for _, step := range s.steps() {
				batch := p.do(t, &s, step)
				s.keep(step, changedBlocks(base, p.ruleset.Want().Text()), batchText(batch))
				p.ruleset.Committed()
			}
			s.finish(t, before)
		})
	}
}

// keep takes the outcome of a step into the scenario.
func (s *scenario) keep(step, ruleset, batch string) {
	behind := step + "/objects.yaml"
	if s.index(step+"/delete") > s.index(behind) {
		behind = step + "/delete"
	}
	s.set(step+"/ruleset.nft", ruleset, behind)
	s.set(step+"/batch.nft", batch, step+"/ruleset.nft")
}

// finish compares the scenario with what it was before it was played, or writes it.
func (s *scenario) finish(t *testing.T, before string) {
	t.Helper()
	diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(s.String(), "\n"))
	if diff == "" {
		return
	}
	if !*update {
		t.Errorf("%s: make golden accepts this (-want +got):\n%s", s.path, diff)
		return
	}
	if err := os.WriteFile(s.path, []byte(s.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// emptyText is the ruleset of an empty cluster under default flags.
func emptyText(t testing.TB) string {
	t.Helper()
	p := newPlay(t, scenarioSettings(t, nil))
	p.batch()
	return p.ruleset.Want().Text()
}

// batchText prints the operations of a batch.
func batchText(batch nft.Batch) string {
	var b strings.Builder
	for i := range batch.Ops {
		b.WriteString(batch.Ops[i].Text() + "\n")
	}
	return b.String()
}

// TestGoldenDryRun compares what kube-nft --dry-run prints for all objects of a scenario's
// last step with what the same objects come to here, made at once. The flags are given as
// they stand in the scenario.
func TestGoldenDryRun(t *testing.T) {
	binary := lab.Program(t)
	for _, s := range loadScenarios(t) {
		t.Run(s.name(), func(t *testing.T) {
			t.Parallel()
			steps := s.steps()
			if len(steps) == 0 {
				steps = []string{""}
			}
			manifests := s.text(steps[0] + "/objects.yaml")
			p := newPlay(t, scenarioSettings(t, s.flags()))
			p.applyText(t, manifests)
			p.batch()
			got := dryRun(t, binary, manifests, s.flags()...)
			if diff := cmp.Diff(strings.Split(p.ruleset.Want().Text(), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// dryRun returns what kube-nft --dry-run prints for manifests.
func dryRun(t testing.TB, binary, manifests string, flags ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(manifests), 0o644); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--manifests", file, "--hostname-override", lab.NodeName, "--dry-run"}, flags...)
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("kube-nft %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String()
}

// TestGoldenKernel commits every step of every scenario and holds the kernel to it: what it
// holds after our batch is what is wanted; made at once it lists as our text; and so does
// what nft loads from our text.
func TestGoldenKernel(t *testing.T) {
	lab.Require(t)
	for _, s := range loadScenarios(t) {
		t.Run(s.name(), func(t *testing.T) {
			t.Parallel()
			lab.New(t)
			k := lab.Open(t, kernel.Open)
			p := s.start(t)
			commit(t, k, change.Diff(nil, p.ruleset.Want()))
			checkTriangle(t, k, p.ruleset.Want())
			for _, step := range s.steps() {
				commit(t, k, p.do(t, &s, step))
				checkHeld(t, k, step+", after its batch", p.ruleset.Want())
				checkTriangle(t, k, p.ruleset.Want())
				p.ruleset.Committed()
			}
		})
	}
}

func commit(t testing.TB, k *kernel.Client, batch nft.Batch) {
	t.Helper()
	if err := k.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
}

// read returns what the kernel holds of our tables.
func read(t testing.TB, k *kernel.Client) nft.Tables {
	t.Helper()
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// checkHeld reports what the kernel holds otherwise than wanted.
func checkHeld(t testing.TB, k *kernel.Client, when string, want nft.Tables) {
	t.Helper()
	if repair := change.Diff(read(t, k), want); !repair.Empty() {
		t.Errorf("%s the kernel still lacks:\n%s", when, batchText(repair))
	}
}

// checkTriangle makes the tables anew, by our batch and by nft from our text, and leaves
// them in the kernel.
func checkTriangle(t testing.TB, k *kernel.Client, want nft.Tables) {
	t.Helper()
	text := want.Text()
	commit(t, k, change.Diff(read(t, k), nft.Tables{}))
	commit(t, k, change.Diff(nil, want))
	checkListed(t, "after our batch", text)
	lab.Run(t, "flush ruleset\n"+text, "nft", "-f", "-")
	checkListed(t, "after our text was loaded", text)
	checkHeld(t, k, "after our text was loaded", want)
}

// checkListed compares what nft lists with a text.
func checkListed(t testing.TB, when, want string) {
	t.Helper()
	got := lab.Listing(t, want)
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s nft lists (-want +got):\n%s", when, diff)
	}
}
