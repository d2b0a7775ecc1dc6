package daemon

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
)

// newLog returns a logger that never waits for w.
func newLog(c *config.Config, w io.Writer) *zap.Logger {
	notice := func(dropped uint64) []byte {
		var line bytes.Buffer
		c.Log(&line).Warn("log lines were dropped: stderr is blocked", zap.Uint64("lines", dropped))
		return line.Bytes()
	}
	return c.Log(newLineWriter(w, notice))
}

// A lineWriter writes log lines and never blocks its caller: the reader of a pipe may have stopped, and the
// disk may be full. It counts dropped lines, and writes the count before the next line.
type lineWriter struct {
	lines   chan logLine
	dropped atomic.Uint64
	notice  func(dropped uint64) []byte

	terminal bool
}

// IsTerminal reports whether a terminal shows the lines.
func (l *lineWriter) IsTerminal() bool { return l.terminal }

// A logLine is a line, or a request to report when all earlier lines have been written.
type logLine struct {
	text []byte
	done chan<- struct{}
}

// waitingLines is the largest number of waiting lines. A line has a few hundred bytes.
const waitingLines = 4096

// newLineWriter returns a writer in front of w. It writes to w until the process ends. notice makes
// the line about dropped lines.
func newLineWriter(w io.Writer, notice func(dropped uint64) []byte) *lineWriter {
	l := &lineWriter{lines: make(chan logLine, waitingLines), notice: notice,
		terminal: config.IsTerminal(w)}
	go l.run(w)
	return l
}

func (l *lineWriter) run(w io.Writer) {
	for line := range l.lines {
		if line.done != nil {
			close(line.done)
			continue
		}
		if n := l.dropped.Swap(0); n > 0 {
			_, _ = w.Write(l.notice(n)) // there is nowhere to report that writing failed
		}
		_, _ = w.Write(line.text)
	}
}

// Write queues a copy of one line, or drops it.
func (l *lineWriter) Write(text []byte) (int, error) {
	select {
	case l.lines <- logLine{text: append([]byte(nil), text...)}:
	default:
		l.dropped.Add(1)
	}
	return len(text), nil
}

// syncPatience bounds how long the end of the process waits for the last lines.
const syncPatience = time.Second

// errLogBlocked is the result of a Sync that gave up.
var errLogBlocked = errors.New("stderr is blocked: the last log lines are lost")

// Sync waits until all earlier lines have been passed on.
func (l *lineWriter) Sync() error {
	done, late := make(chan struct{}), time.After(syncPatience)
	select {
	case l.lines <- logLine{done: done}:
	case <-late:
		return errLogBlocked
	}
	select {
	case <-done:
		return nil
	case <-late:
		return errLogBlocked
	}
}
