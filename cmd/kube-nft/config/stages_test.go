package config

import (
	"cmp"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/tracker"
)

// TestStagesAreDocumented holds the table of stages in the documentation to the annotations and to the settings that
// kube-proxy does not have; -update rewrites it.
func TestStagesAreDocumented(t *testing.T) {
	const path, begin, end = "../../../docs/support.md", "<!-- stages: make golden rewrites this table -->\n\n",
		"\n<!-- end of stages -->\n"
	table := "| annotation or flag | stage |\n|---|---|\n"
	annotations := tracker.Annotations()
	slices.SortFunc(annotations, func(a, b tracker.Annotation) int { return cmp.Compare(a.Key, b.Key) })
	for _, a := range annotations {
		table += fmt.Sprintf("| `%s` | %s |\n", a.Key, a.Stage)
	}
	own := make(map[string]bool)
	for field := range reflect.TypeFor[KubeNFTConfiguration]().Fields() {
		own[jsonName(field)] = true
	}
	var flags []setting
	for _, s := range settings {
		if own[s.field] && s.usage != "" {
			flags = append(flags, s)
		}
	}
	slices.SortFunc(flags, func(a, b setting) int { return cmp.Compare(a.flag, b.flag) })
	for _, s := range flags {
		table += fmt.Sprintf("| `--%s` | %s |\n", s.flag, cmp.Or(s.stage, "stable"))
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), begin)
	have, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal(path + " has no table of stages")
	}
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if have != table {
		t.Fatalf("make golden accepts this (-want +got):\n%s", gocmp.Diff(table, have))
	}
}
