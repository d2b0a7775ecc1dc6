package manifest

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/tracker"
)

// A fileSet holds the content of the files at a path, and what the sink has received of it. It is
// used by one goroutine.
type fileSet struct {
	path    string
	options *Options
	files   map[string]*file // by path
	given   map[id]object    // what the sink holds
	twice   string           // the last notice about objects that are defined twice
	scanned bool             // at least once
}

func newFileSet(path string, options *Options) *fileSet {
	return &fileSet{path: path, options: options, files: make(map[string]*file), given: make(map[id]object)}
}

// scan reads the changed files and gives sink what is new. It fails, and changes nothing, if the
// path itself cannot be read.
func (s *fileSet) scan(sink tracker.Sink) error {
	paths, err := list(s.path)
	if err != nil {
		return err
	}
	if len(paths) == 0 && (len(s.files) > 0 || !s.scanned) {
		s.options.notice(fmt.Sprintf("manifests %s: no file is named *.yaml, *.yml or *.json", s.path))
	}
	files := make(map[string]*file, len(paths))
	changed := false
	for _, path := range paths {
		f := s.files[path]
		if f == nil {
			f = &file{path: path}
		}
		files[path] = f
		read, news := f.refresh()
		changed = changed || read
		if news {
			s.report(f)
		}
	}
	changed = changed || len(files) != len(s.files) || !s.scanned
	s.files, s.scanned = files, true
	if changed {
		s.give(sink, s.merge())
	}
	return nil
}

// report reports on a file that was read again.
func (s *fileSet) report(f *file) {
	s.options.problem(f.failure)
	for _, notice := range f.notices {
		s.options.notice(notice)
	}
}

// err joins the faults of the files.
func (s *fileSet) err() error {
	var failures []error
	for _, path := range slices.Sorted(maps.Keys(s.files)) {
		failures = append(failures, s.files[path].failure)
	}
	return errors.Join(failures...)
}

// merge returns the objects of all files. Of several definitions of one object the last one counts,
// in the order of file names and lines.
func (s *fileSet) merge() map[id]object {
	merged := make(map[id]object)
	var twice []string
	for _, path := range slices.Sorted(maps.Keys(s.files)) {
		for _, o := range s.files[path].objects {
			if earlier, found := merged[o.id]; found {
				twice = append(twice, fmt.Sprintf("%s is defined at %s and at %s; the second one is used", o.id, earlier.position,
					o.position))
			}
			merged[o.id] = o
		}
	}
	if text := strings.Join(twice, "\n"); text != s.twice {
		s.twice = text
		for _, notice := range twice {
			s.options.notice(notice)
		}
	}
	return merged
}

// give makes sink hold want: deletions first, then the rest, in a fixed order.
func (s *fileSet) give(sink tracker.Sink, want map[id]object) {
	var gone, changed []id
	for id := range s.given {
		if _, kept := want[id]; !kept {
			gone = append(gone, id)
		}
	}
	for id, object := range want {
		if before, found := s.given[id]; !found || !reflect.DeepEqual(before.value, object.value) {
			changed = append(changed, id)
		}
	}
	s.given = want
	slices.SortFunc(gone, id.compare)
	slices.SortFunc(changed, id.compare)
	for _, id := range gone {
		id.remove(sink)
	}
	for _, id := range changed {
		if err := want[id].give(sink); err != nil && s.options.Refused != nil {
			s.options.Refused(err)
		}
	}
	if len(gone)+len(changed) > 0 && s.options.Changed != nil {
		s.options.Changed()
	}
}
