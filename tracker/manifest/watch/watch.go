// Package watch reports when the content of a file or directory may have changed: make a Watch with New, read, and
// read again after each Next. It notices files that are written in place, renamed over, or exchanged as mounted
// ConfigMaps are.
package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// contentEvents are the inotify events after which a directory may hold other files, or a file
// other content. IN_MODIFY is not among them: a write counts when it is complete, or at the
// periodic scan.
const contentEvents = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CREATE |
	unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ATTRIB

// A Watch reports that something may have changed at a path: in it, or in its parent directory,
// where it is renamed, deleted and created. A nil Watch reports nothing. One goroutine may use it.
type Watch struct {
	path   string
	file   *os.File      // the inotify instance
	wake   chan struct{} // holds at most one
	self   int           // watch descriptor of the path, -1 for none
	parent atomic.Int64  // of its directory
}

// New watches path, which need not exist. It fails where inotify cannot be used. If a limit is the
// cause, the error names it.
func New(path string) (*Watch, error) {
	path, err := filepath.Abs(path) // its parent is another directory, even for "."
	if err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		return nil, fmt.Errorf("inotify: %w: raise fs.inotify.max_user_instances", err)
	}
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	w := &Watch{path: path, file: os.NewFile(uintptr(fd), "inotify"), wake: make(chan struct{}, 1), self: -1}
	w.parent.Store(-1)
	w.arm()
	go w.read()
	return w, nil
}

// arm points the watch at what is at the path now: links may have changed, and directories may have come back.
func (w *Watch) arm() {
	if w == nil {
		return
	}
	w.parent.Store(int64(w.add(filepath.Dir(w.path), unix.IN_MOVED_TO|unix.IN_MOVED_FROM|unix.IN_CREATE|unix.IN_DELETE)))
	self := w.add(w.path, contentEvents)
	if w.self >= 0 && self != w.self {
		w.control(func(fd int) { _, _ = unix.InotifyRmWatch(fd, uint32(w.self)) }) // it may be gone
	}
	w.self = self
}

// add returns a watch descriptor for path, or -1 if there is nothing to watch there.
func (w *Watch) add(path string, events uint32) int {
	descriptor := -1
	w.control(func(fd int) {
		// The parent directory and the path can be one inode: events add up.
		if added, err := unix.InotifyAddWatch(fd, path, events|unix.IN_MASK_ADD); err == nil {
			descriptor = added
		}
	})
	return descriptor
}

// control calls use with the inotify descriptor.
func (w *Watch) control(use func(fd int)) {
	connection, err := w.file.SyscallConn()
	if err != nil {
		return // closed
	}
	_ = connection.Control(func(fd uintptr) { use(int(fd)) }) // fails only if closed
}

// Next waits until the content may have changed: until something was announced and then nothing for quiet, for at most
// most, or until rescan is over, which finds what inotify does not see. It returns false when ctx ends.
func (w *Watch) Next(ctx context.Context, quiet, most, rescan time.Duration) bool {
	var wake chan struct{}
	if w != nil {
		wake = w.wake
	}
	settled, limit := time.After(rescan), (<-chan time.Time)(nil)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-wake:
			if settled = time.After(quiet); limit == nil {
				limit = time.After(most)
			}
			continue
		case <-settled:
		case <-limit:
		}
		w.arm() // before the caller looks, so that nothing falls in between
		return true
	}
}

// read reports events until the watch is closed.
func (w *Watch) read() {
	buffer := make([]byte, 1<<14)
	for {
		n, err := w.file.Read(buffer)
		if err != nil {
			return
		}
		if !w.relevant(buffer[:n]) {
			continue
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// relevant reports whether one of the events concerns the path. In the parent directory these are
// events of the path's own name and, as in mounted ConfigMaps, of names that begin with two dots.
// Source of the layout: struct inotify_event in inotify(7).
func (w *Watch) relevant(events []byte) bool {
	base := filepath.Base(w.path)
	for len(events) >= unix.SizeofInotifyEvent {
		descriptor := int32(binary.NativeEndian.Uint32(events))
		size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		name := strings.TrimRight(string(events[unix.SizeofInotifyEvent:size]), "\x00")
		if int64(descriptor) != w.parent.Load() || name == base || strings.HasPrefix(name, "..") {
			return true
		}
		events = events[size:]
	}
	return false
}

// Close ends the watch.
func (w *Watch) Close() {
	if w != nil {
		_ = w.file.Close() // nothing is lost
	}
}
