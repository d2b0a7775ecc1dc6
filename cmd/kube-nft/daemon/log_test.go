package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
)

func droppedNotice(n uint64) []byte { return fmt.Appendf(nil, "dropped %d\n", n) }

func TestLinesAreWrittenInOrder(t *testing.T) {
	var out bytes.Buffer
	w := newLineWriter(&out, droppedNotice)
	for i := range 100 {
		fmt.Fprintf(w, "line %d\n", i)
	}
	if err := w.Sync(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 101 || lines[0] != "line 0" || lines[99] != "line 99" {
		t.Errorf("%d lines: %q to %q", len(lines)-1, lines[0], lines[len(lines)-2])
	}
	close(w.lines)
}

func TestBlockedLogDoesNotBlockCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, pipe := io.Pipe() // without a reader
		w := newLineWriter(pipe, droppedNotice)
		const lines = 3 * waitingLines
		for range lines {
			fmt.Fprintln(w, "line")
			synctest.Wait()
		}
		if err := w.Sync(); !errors.Is(err, errLogBlocked) {
			t.Errorf("Sync: %v", err)
		}
		var got bytes.Buffer
		read := make(chan error)
		go func() {
			_, err := io.Copy(&got, reader)
			read <- err
		}()
		synctest.Wait()
		fmt.Fprintln(w, "line")
		if err := w.Sync(); err != nil {
			t.Error(err)
		}
		pipe.Close()
		if err := <-read; err != nil {
			t.Error(err)
		}
		// One line was being written, the others waited.
		want := fmt.Sprintf("dropped %d\n", lines-waitingLines-1)
		if n := strings.Count(got.String(), "line\n"); n != waitingLines+2 || strings.Count(got.String(), want) != 1 {
			t.Errorf("%d lines, and not once %q", n, want)
		}
		close(w.lines)
	})
}

// A fullDisk refuses everything.
type fullDisk struct{ tries int }

func (d *fullDisk) Write([]byte) (int, error) {
	d.tries++
	return 0, errors.New("no space left on device")
}

func TestFullDiskIsTriedAgain(t *testing.T) {
	disk := new(fullDisk)
	w := newLineWriter(disk, droppedNotice)
	for range 3 {
		if _, err := w.Write([]byte("line\n")); err != nil {
			t.Error(err)
		}
	}
	if err := w.Sync(); err != nil || disk.tries != 3 {
		t.Errorf("%d tries, %v", disk.tries, err)
	}
	close(w.lines)
}
