package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestVisibleWriter writes a text in pieces of each length: characters arrive whole, and nothing
// that a terminal obeys.
func TestVisibleWriter(t *testing.T) {
	const text = "Größe — 日本 🙂\tok\n\x1b[2J\u009b\x9b\xe2\x82"
	const want = "Größe — 日本 🙂\tok\n" + `\u001b[2J\u009b\x9b\xe2\x82`
	for n := 1; n <= len(text); n++ {
		var out strings.Builder
		w := visibleWriter{to: &out}
		for at := 0; at < len(text); at += n {
			if _, err := w.Write([]byte(text[at:min(at+n, len(text))])); err != nil {
				t.Fatal(err)
			}
		}
		w.flush()
		if out.String() != want {
			t.Errorf("in pieces of %d bytes: %q, want %q", n, out.String(), want)
		}
	}
}

// TestVisibleJSON: a document for programs stays what it says.
func TestVisibleJSON(t *testing.T) {
	const text = "\x1b\x7f\u009b\u202e\U000e0041\n🙂"
	document, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	w := visibleWriter{to: &out}
	if _, err := w.Write(document); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil || got != text {
		t.Errorf("%s: %q, %v, want %q", out.String(), got, err, text)
	}
}
