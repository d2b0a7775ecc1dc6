package manifest

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/manifest/watch"
)

const (
	// quiet is how long nothing must happen before files are read: an editor saves in several steps.
	quiet = 5 * time.Millisecond
	// maxQuiet bounds the wait when something happens all the time.
	maxQuiet = 200 * time.Millisecond
	// defaultRescan finds what inotify does not see: writes through memory maps, network
	// file systems, targets of links in other directories.
	defaultRescan = 10 * time.Second
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
	// Rescan is the interval of looking for unannounced changes; 0 means 10s.
	Rescan time.Duration
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
	synced  chan struct{}
}

// New returns a Source for a file or directory. Nothing is read before Run.
func New(path string, options Options) *Source {
	options.Rescan = cmp.Or(options.Rescan, defaultRescan)
	return &Source{path: path, options: options, synced: make(chan struct{})}
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
		s.options.notice(fmt.Sprintf("cannot watch the manifests, so changes are read only every %s: %v", s.options.Rescan,
			err))
	}
	defer changes.Close()
	set := newFileSet(s.path, &s.options)
	if err := set.scan(sink); err != nil {
		return err
	}
	close(s.synced)
	s.follow(ctx, changes, set, sink)
	return nil
}

// follow scans set when its files change and from time to time, until ctx ends.
func (s *Source) follow(ctx context.Context, changes *watch.Watch, set *fileSet, sink tracker.Sink) {
	ticker := time.NewTicker(s.options.Rescan)
	defer ticker.Stop()
	missing := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-changes.Events():
			changes.Settle(ctx, quiet, maxQuiet)
		}
		changes.Arm() // before the scan, so that nothing falls in between
		text := ""
		if err := set.scan(sink); err != nil {
			text = err.Error()
			if text != missing {
				s.options.problem(fmt.Errorf("%w; its last valid content stays in force", err))
			}
		}
		missing = text
	}
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
