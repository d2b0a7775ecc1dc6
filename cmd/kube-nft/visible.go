package main

import (
	"io"
	"sync"
	"unicode/utf8"

	"github.com/kube-nft/kube-nft/nft"
)

// A visibleWriter passes on lines of text without anything that a terminal would obey. All that a
// command prints goes through it, for much of that comes from others. Its methods may be called from
// any goroutine.
type visibleWriter struct {
	to io.Writer

	mu   sync.Mutex
	rest []byte // the beginning of a character that the next Write completes
}

// Write passes p on, except for the beginning of a character at its end.
func (v *visibleWriter) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	text := append(v.rest, p...)
	whole := len(text)
	for at := whole - 1; at >= max(0, whole-utf8.UTFMax); at-- {
		if utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				whole = at
			}
			break
		}
	}
	v.rest = append([]byte(nil), text[whole:]...)
	if _, err := io.WriteString(v.to, nft.VisibleLines(string(text[:whole]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// flush passes on what is left.
func (v *visibleWriter) flush() {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, _ = io.WriteString(v.to, nft.VisibleLines(string(v.rest))) // there is nobody to tell
	v.rest = nil
}
