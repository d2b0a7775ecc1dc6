package nft_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

func TestStatementsText(t *testing.T) {
	for _, s := range nfttest.Statements {
		for _, f := range nft.Families {
			if got, want := s.Rule(f).Text(f), s.Text(f); got != want {
				t.Errorf("%s: got  %s\nwant %s", s.Name, got, want)
			}
		}
	}
}

// TestEveryStatementType: the table of statements has each type that can be traced, but for Raw,
// which is what the kernel holds and no statement of ours.
func TestEveryStatementType(t *testing.T) {
	want := tracedTypes(t)
	delete(want, reflect.TypeFor[nft.Raw]().Name())
	got := make(map[string]bool)
	for _, s := range nfttest.Statements {
		for _, stmt := range s.Rule(nft.IP) {
			got[reflect.TypeOf(stmt).Name()] = true
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("types in the table of statements (-want +got):\n%s", diff)
	}
}

// tracedTypes returns the types that have a method trace, as the package's sources have them.
func tracedTypes(t *testing.T) map[string]bool {
	t.Helper()
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	types := make(map[string]bool)
	for _, name := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "trace" {
				types[fmt.Sprint(f.Recv.List[0].Type)] = true
			}
		}
	}
	return types
}

func ExampleRule_Text() {
	pods := nft.AddressIn{Of: nft.Source, Prefix: netip.MustParsePrefix("10.244.0.0/16")}
	fmt.Println(nft.Rule{pods, nft.Goto("pick-2")}.Text(nft.IP))
	// Output: ip saddr 10.244.0.0/16 goto pick-2
}
