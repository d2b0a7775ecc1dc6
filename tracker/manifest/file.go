package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxFileSize is how long a manifest may be, in bytes.
const maxFileSize = 64 << 20

// racy is the age below which a file's times do not prove that it was not written since:
// kernels before 6.13 count them in ticks of up to 10ms.
const racy = 50 * time.Millisecond

// list returns the manifests at path, sorted; path itself if it is no directory.
func list(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("manifests %s: %w", path, cause(err))
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path) // sorted by name
	if err != nil {
		return nil, fmt.Errorf("manifests %s: %w", path, cause(err))
	}
	var paths []string
	for _, entry := range entries {
		name := entry.Name()
		if !entry.IsDir() && name[0] != '.' && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			paths = append(paths, filepath.Join(path, name))
		}
	}
	return paths, nil
}

// cause strips the operation and path from err.
func cause(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}

// A stamp distinguishes versions of a file without reading it.
type stamp struct {
	device, inode uint64
	size          int64
	mtime, ctime  syscall.Timespec
}

// noStamp is the stamp of no file.
var noStamp stamp

// A file is one manifest and its last good content.
type file struct {
	path    string
	stamp   stamp  // of the version read last
	inode   uint64 // of that version: an empty file with the same inode is about to be written
	objects []object
	cache   cache
	failure error    // why the present version is not used; nil if it is used
	notices []string // about the present version
}

// refresh reads the file if it may have changed. It reports whether it has read it and whether
// there is something new to report about it.
func (f *file) refresh() (read, news bool) {
	before := f.outcome()
	content, stamp, err := f.read()
	if err == nil && content == nil {
		return false, false
	}
	truncated := err == nil && len(content) == 0 && len(f.objects) > 0 && stamp.inode == f.inode
	f.stamp, f.inode, f.notices, f.failure = stamp, stamp.inode, nil, err
	if time.Since(time.Unix(stamp.ctime.Unix())) < racy {
		f.stamp = noStamp // read it again next time
	}
	switch {
	case truncated:
		f.failure = fmt.Errorf("%s: file is empty; keeping its %d objects (delete the file to remove them)", f.path,
			len(f.objects))
	case err == nil:
		f.failure = f.parse(content)
	}
	return true, f.outcome() != before
}

// outcome is everything to report about the file.
func (f *file) outcome() string {
	return fmt.Sprint(f.failure, f.notices)
}

// read returns the content of the file, nil if it is known already, and its stamp.
func (f *file) read() ([]byte, stamp, error) {
	handle, err := os.OpenFile(f.path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not block
	if err != nil {
		return nil, noStamp, fmt.Errorf("%s: %w", f.path, cause(err))
	}
	defer handle.Close()
	info, err := handle.Stat()
	switch {
	case err != nil:
		return nil, noStamp, fmt.Errorf("%s: %w", f.path, cause(err))
	case !info.Mode().IsRegular():
		return nil, noStamp, fmt.Errorf("%s: not a regular file", f.path)
	}
	found := stampOf(info)
	if found == f.stamp {
		return nil, found, nil
	}
	content, err := io.ReadAll(io.LimitReader(handle, maxFileSize+1))
	switch {
	case err != nil:
		return nil, noStamp, fmt.Errorf("%s: %w", f.path, cause(err))
	case len(content) > maxFileSize:
		return nil, found, fmt.Errorf("%s: larger than %d MiB: split it into several files", f.path, maxFileSize>>20)
	}
	return content, found, nil
}

func stampOf(info fs.FileInfo) stamp {
	stat := info.Sys().(*syscall.Stat_t)
	return stamp{device: stat.Dev, inode: stat.Ino, size: stat.Size, mtime: stat.Mtim, ctime: stat.Ctim}
}

// parse replaces the file's objects by the objects in content. After an error it keeps the old
// ones.
func (f *file) parse(content []byte) error {
	p := parser{path: f.path, old: f.cache, cache: make(cache), skipped: make(map[string]int)}
	var err error
	if strings.HasSuffix(f.path, ".json") {
		err = p.json(content)
	} else {
		err = p.yaml(content)
	}
	if err != nil {
		return err
	}
	f.objects, f.cache, f.notices = p.objects, p.cache, p.summary()
	return nil
}
