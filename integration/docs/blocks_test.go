// Package docs tests the pages for users and contributors: links have a target, blocks marked "sh run" run, objects
// decode, and the files and tests that a page names exist.
package docs

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// runnable matches a block of commands that is to be run: its info string is "sh run". Renderers show it as any other.
var runnable = regexp.MustCompile("(?ms)^```sh run\n(.*?)^```")

// blockTimeout is for all blocks of one page.
const blockTimeout = 2 * time.Minute

// TestBlocks runs the blocks of each page that say "sh run", in their order, as root in a network namespace of the
// page's own, in a copy of the repository's deploy directory and with kube-nft in PATH. A command that fails fails the
// test.
func TestBlocks(t *testing.T) {
	lab.Require(t)
	pages := append(glob(t, "docs/*.md"), glob(t, "*.md")...)
	run := 0
	for _, page := range pages {
		var script strings.Builder
		for _, block := range runnable.FindAllStringSubmatch(readPage(t, page), -1) {
			script.WriteString(block[1])
			run++
		}
		if script.Len() == 0 {
			continue
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			lab.New(t)
			out, err := runScript(t, script.String())
			if err != nil {
				t.Errorf("%s: %v\n%s", filepath.Base(page), err, out)
			}
		})
	}
	if run < 5 {
		t.Errorf("ran %d blocks, which are too few to be all", run)
	}
}

// runScript runs commands as a reader would, one after the other, and stops at the first that fails.
func runScript(t *testing.T, script string) (string, error) {
	t.Helper()
	home := t.TempDir()
	if err := os.CopyFS(filepath.Join(home, "deploy"), os.DirFS(lab.Path(t, "deploy"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(home, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(lab.Program(t), filepath.Join(home, "bin", "kube-nft")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), blockTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	command.Dir, command.WaitDelay = home, time.Second
	command.Env = append(os.Environ(), "HOME="+home, "PATH="+filepath.Join(home, "bin")+":"+os.Getenv("PATH"))
	out, err := command.CombinedOutput()
	return string(out), err
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(lab.Path(t, pattern))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: no files (%v)", pattern, err)
	}
	return paths
}
