package manifest

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/manifest/watch"
)

const (
	// quiet is how long nothing must happen before files are read: an editor saves in several steps.
	quiet = 5 * time.Millisecond
	// maxQuiet bounds the wait when something happens all the time.
	maxQuiet = 200 * time.Millisecond
	// rescan finds what inotify does not see: writes through memory maps, network file systems, targets of links in
	// other directories.
	rescan = 10 * time.Second
)

// Options are the functions that a Source calls. Each may be nil.
type Options struct {
	// Changed is called after the sink has received something, once for everything found together.
	// It must not block.
	Changed func()
	// Refused gets the errors of the sink.
	Refused func(error)
	// Problem gets the reason why a file cannot be used, once for each version of the file.
	Problem func(error)
	// Notice gets messages for the user: unknown fields, objects of other kinds, objects
	// defined twice.
	Notice func(text string)
}

func (o *Options) problem(err error) {
	if err != nil && o.Problem != nil {
		o.Problem(err)
	}
}

func (o *Options) notice(text string) {
	if o.Notice != nil {
		o.Notice(text)
	}
}

// A Source keeps a sink equal to the content of files.
type Source struct {
	path    string
	options Options
	rescan  time.Duration
	synced  chan struct{}
}

// New returns a Source for a file or directory. Nothing is read before Run.
func New(path string, options Options) *Source {
	return &Source{path: path, options: options, rescan: rescan, synced: make(chan struct{})}
}

// Synced returns a channel that is closed once the sink has the objects of all usable files.
func (s *Source) Synced() <-chan struct{} {
	return s.synced
}

// Run feeds sink until ctx ends, and then returns nil. It fails at once if the path cannot be read.
// It may be called once.
func (s *Source) Run(ctx context.Context, sink tracker.Sink) error {
	changes, err := watch.New(s.path)
	if err != nil {
		s.options.notice(fmt.Sprintf("cannot watch the manifests, so changes are read only every %s: %v", s.rescan, err))
	}
	defer changes.Close()
	set := newFileSet(s.path, &s.options)
	if err := set.scan(sink); err != nil {
		return err
	}
	close(s.synced)
	var missing quota.Once
	for changes.Next(ctx, quiet, maxQuiet, s.rescan) {
		if err := set.scan(sink); missing.Fails(err) {
			s.options.problem(fmt.Errorf("%w; its last valid content stays in force", err))
		}
	}
	return nil
}

// Load gives sink the content of the files at path and returns. If some file cannot be used it
// fails with an error that joins one for each such file.
func Load(path string, options Options, sink tracker.Sink) error {
	set := newFileSet(path, &options)
	if err := set.scan(sink); err != nil {
		return err
	}
	return set.err()
}
