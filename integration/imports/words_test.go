package imports

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// retired are words that docs/architecture.md has another word for: in code, in comments, in
// texts and in documents.
var retired = map[string]string{
	"sticky": "affinity", "stick": "affinity", "sticks": "affinity",
	"remember": "affinity entry", "remembers": "affinity entry", "remembered": "affinity entry", "remembering": "affinity entry",
	"recollection": "affinity map", "recollections": "affinity map",
	"poison": "refusal", "poisoned": "refusal",
	"prelude": "two-phase commit",
}

// retiredNames are words that identifiers do not contain; in prose they mean what they mean.
var retiredNames = map[string]string{
	"beside": "foreign", "ask": "request", "asker": "client", "taker": "writer", "draft": "journal",
	"tempo": "pauses", "poison": "refusals",
}

// retiredFiles are names of files that answer no question.
var retiredFiles = strings.Fields(`ask beside claims clients draft flows foreign lists owner pick prelude record typed usage
	ahead poison sweep tempo entry take current util utils common helpers misc`)

// exempt are words that stand for names in the kernel, which an upgrade adopts, by file.
var exempt = map[string]string{
	"nft/services/policy.go": "stick",
	"README.md":              "stick",
}

// isDocument reports whether the words of a file are held to the glossary.
func isDocument(name string) bool {
	return name != "integration/imports/words_test.go" && name != "docs/architecture.md" &&
		slices.Contains([]string{".go", ".md", ".yaml", ".json", ".sh"}, filepath.Ext(name)) && !strings.Contains(name, "testdata/")
}

var wordPattern = regexp.MustCompile(`[A-Za-z]+`)

// TestWords holds names, comments, texts and documents against the glossary.
func TestWords(t *testing.T) {
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if strings.HasPrefix(entry.Name(), ".") && name != "." || name == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		base, isGo := strings.CutSuffix(filepath.Base(name), ".go")
		if isGo && slices.Contains(retiredFiles, strings.TrimSuffix(base, "_test")) {
			t.Errorf("%s: name the file after what a stranger would look for", name)
		}
		if !isDocument(name) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, word := range wordsOf(name, text) {
			if instead := retired[strings.ToLower(word)]; instead != "" && exempt[name] != strings.ToLower(word) {
				t.Errorf("%s says %q; the glossary says %q", name, word, instead)
			}
		}
		if isGo {
			for _, identifier := range identifiers(t, name, text) {
				for _, word := range camelWords(identifier) {
					if instead := cmp.Or(retired[word], retiredNames[word]); instead != "" {
						t.Errorf("%s: the name %s contains %q; the glossary says %q", name, identifier, word, instead)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wordsOf lists the words of a document, or the words of comments and texts of Go source.
func wordsOf(name string, text []byte) (words []string) {
	if !strings.HasSuffix(name, ".go") {
		return wordPattern.FindAllString(string(text), -1)
	}
	var s scanner.Scanner
	files := token.NewFileSet()
	s.Init(files.AddFile(name, -1, len(text)), text, nil, scanner.ScanComments)
	for {
		_, tok, literal := s.Scan()
		switch tok {
		case token.EOF:
			return words
		case token.COMMENT, token.STRING:
			words = append(words, wordPattern.FindAllString(literal, -1)...)
		}
	}
}

// identifiers lists the names that a file declares.
func identifiers(t *testing.T, name string, text []byte) (names []string) {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			names = append(names, d.Name.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, s.Name.Name)
				case *ast.ValueSpec:
					for _, n := range s.Names {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	return names
}

var camel = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)

func camelWords(name string) []string {
	words := camel.FindAllString(name, -1)
	for i := range words {
		words[i] = strings.ToLower(words[i])
	}
	return words
}

func TestCamelWords(t *testing.T) {
	if got := camelWords("stickyMapOf"); !slices.Equal(got, []string{"sticky", "map", "of"}) {
		t.Errorf("got %q", got)
	}
}
