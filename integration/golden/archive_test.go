package golden

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// An archive is several text files in one, in the txtar format: a comment, then each file
// under a line "-- NAME --".
type archive struct {
	comment string
	files   []archiveFile
}

// An archiveFile is a file of an archive; its text is empty or ends with a line end.
type archiveFile struct{ name, text string }

// parseArchive reads an archive.
func parseArchive(text string) (archive, error) {
	var a archive
	for line := range strings.Lines(text) {
		name, isMarker := markerName(line)
		switch {
		case isMarker && a.index(name) >= 0:
			return archive{}, fmt.Errorf("file %s comes twice", name)
		case isMarker:
			a.files = append(a.files, archiveFile{name: name})
		case len(a.files) == 0:
			a.comment += line
		default:
			a.files[len(a.files)-1].text += line
		}
	}
	return a, nil
}

// markerName returns the name in a marker line.
func markerName(line string) (string, bool) {
	name, ok := strings.CutPrefix(strings.TrimSpace(line), "-- ")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(name, " --")
}

// String is the inverse of parseArchive.
func (a *archive) String() string {
	var b strings.Builder
	b.WriteString(a.comment)
	for _, f := range a.files {
		fmt.Fprintf(&b, "-- %s --\n%s", f.name, f.text)
	}
	return b.String()
}

func (a *archive) index(name string) int {
	return slices.IndexFunc(a.files, func(f archiveFile) bool { return f.name == name })
}

// text returns what a file holds; a missing one holds nothing.
func (a *archive) text(name string) string {
	if i := a.index(name); i >= 0 {
		return a.files[i].text
	}
	return ""
}

// set writes a file, behind the given one if it is new.
func (a *archive) set(name, text, behind string) {
	if i := a.index(name); i >= 0 {
		a.files[i].text = text
		return
	}
	a.files = slices.Insert(a.files, a.index(behind)+1, archiveFile{name: name, text: text})
}

// readArchive reads an archive from a file.
func readArchive(t testing.TB, path string) archive {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	a, err := parseArchive(string(text))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return a
}

func TestArchive(t *testing.T) {
	const text = "what it is about\n-- a --\n1\n2\n-- b/c.yaml --\n-- d --\n--\n"
	a, err := parseArchive(text)
	if err != nil || a.String() != text {
		t.Errorf("%q comes out as %q, %v", text, a.String(), err)
	}
	if got := a.text("d"); got != "--\n" {
		t.Errorf("file d holds %q", got)
	}
	a.set("e", "new\n", "a")
	if want := "what it is about\n-- a --\n1\n2\n-- e --\nnew\n-- b/c.yaml --\n-- d --\n--\n"; a.String() != want {
		t.Errorf("with file e: %q", a.String())
	}
	if _, err := parseArchive("-- a --\n-- a --\n"); err == nil || err.Error() != "file a comes twice" {
		t.Errorf("a file that comes twice: %v", err)
	}
}
