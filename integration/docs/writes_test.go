package docs

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// writes matches code that makes or changes a file.
var writes = regexp.MustCompile(`os\.(?:WriteFile|Create|Mkdir|Rename|Link|Symlink|Truncate|O_CREATE|O_WRONLY|O_RDWR)`)

// TestWrittenFilesAreListed: docs/security.md names everything that kube-nft writes.
func TestWrittenFilesAreListed(t *testing.T) {
	page := readPage(t, lab.Path(t, "docs/security.md"))
	listed := map[string]string{
		"cmd/kube-nft/cluster/bugreport.go": "the archive of `bugreport`",
		"cmd/kube-nft/daemon/peer/door.go":  "socket file for commands",
		"cmd/kube-nft/daemon/sysctls.go":    "`oom_score_adj`",
		"cmd/kube-nft/main.go":              "the file of `--write-config-to`",
		"conntrack/sysctl.go":               "kube-nft writes sysctls",
		"nft/legacy/iptables.go":            "`/run/xtables.lock`",
		"sync/localhost/route.go":           "kube-nft writes sysctls",
	}
	root := lab.Path(t, ".")
	for _, room := range []string{"cmd", "conntrack", "nft", "sync", "tracker"} {
		err := filepath.WalkDir(filepath.Join(root, room), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") ||
				!writes.MatchString(readPage(t, path)) {
				return err
			}
			name, err := filepath.Rel(root, path)
			if words := listed[name]; words == "" || !strings.Contains(page, words) {
				t.Errorf("%s writes a file; docs/security.md has to say which: %q", name, words)
			}
			delete(listed, name)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	for name := range listed {
		t.Errorf("%s writes no file", name)
	}
}
