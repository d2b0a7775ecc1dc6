package docs

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

var (
	// link matches a link or an image in Markdown.
	link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	// fence matches blocks and spans of code, where nothing is a link.
	fence = regexp.MustCompile("(?ms)^```.*?^```|`[^`\n]*`")
	// punctuation is what an anchor leaves out of its heading.
	punctuation = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// repository begins the address of a file of this one, as pages that are read elsewhere have it.
const repository = "https://github.com/kube-nft/kube-nft/blob/main/"

// maxReadme is how many lines of README a reader is asked to bear.
const maxReadme = 250

// TestLinks follows each link within the repository to a file, and to a heading of it.
func TestLinks(t *testing.T) {
	followed := 0
	pages := slices.Concat(glob(t, "docs/*.md"), glob(t, "docs/decisions/*.md"), glob(t, "*.md"),
		glob(t, "deploy/helm/*/README.md"), glob(t, "integration/results/*.md"),
		glob(t, "integration/packets/testdata/*/*.md"))
	for _, page := range pages {
		text := fence.ReplaceAllString(readPage(t, page), "")
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			file, anchor, _ := strings.Cut(match[1], "#")
			here := ""
			if path, ours := strings.CutPrefix(file, repository); ours {
				here = lab.Path(t, path)
			} else if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
				continue
			} else if file != "" {
				here = filepath.Join(filepath.Dir(page), file)
			}
			followed++
			target := cmp.Or(here, page)
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(page), match[1], err)
			} else if anchor != "" && !anchors(readPage(t, target))[anchor] {
				t.Errorf("%s links to %s: no such heading", filepath.Base(page), match[1])
			}
		}
	}
	if followed < 20 {
		t.Errorf("followed %d links, which are too few to be all", followed)
	}
}

// TestReadmeLength keeps the README a first page; the others are in docs.
func TestReadmeLength(t *testing.T) {
	if lines := strings.Count(readPage(t, lab.Path(t, "README.md")), "\n"); lines > maxReadme {
		t.Errorf("the README has %d lines, want at most %d", lines, maxReadme)
	}
}

// anchors are the names by which a page's headings are linked to.
func anchors(page string) map[string]bool {
	names := make(map[string]bool)
	for _, line := range strings.Split(fencedBlocks.ReplaceAllString(page, ""), "\n") {
		if heading := strings.TrimLeft(line, "#"); heading != line && strings.HasPrefix(heading, " ") {
			plain := punctuation.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			names[strings.ReplaceAll(plain, " ", "-")] = true
		}
	}
	return names
}

// fencedBlocks matches blocks of code, in which a # begins a comment.
var fencedBlocks = regexp.MustCompile("(?ms)^```.*?^```")

func readPage(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
