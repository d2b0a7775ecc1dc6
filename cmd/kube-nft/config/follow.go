package config

import (
	"bytes"
	"context"
	"time"

	"github.com/kube-nft/kube-nft/tracker/manifest/watch"
)

const (
	// quiet is how long nothing must happen before the file is read: an editor saves in several
	// steps.
	quiet = 50 * time.Millisecond
	// maxQuiet bounds the wait when something happens all the time.
	maxQuiet = time.Second
	// rescan finds what inotify does not see: network file systems, targets of links in
	// other directories.
	rescan = 10 * time.Second
)

// Follow returns true once the file gives other settings than have, and false when ctx ends or
// there is no file. Another text with the same meaning is no change. While the file is unreadable
// or invalid, have stays in force; problem receives each reason once.
func (r *Reader) Follow(ctx context.Context, have *Config, problem func(error)) bool {
	if have.File == "" {
		<-ctx.Done()
		return false
	}
	changes, err := watch.New(have.File)
	if err != nil {
		problem(err)
	}
	defer changes.Close()
	ticker := time.NewTicker(rescan)
	defer ticker.Stop()
	for last := ""; ; {
		changes.Arm() // before the file is read, so that nothing falls in between
		changed, err := r.differs(have)
		switch {
		case changed:
			return true
		case err == nil:
			last = ""
		case err.Error() != last:
			last = err.Error()
			problem(err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		case <-changes.Events():
			changes.Settle(ctx, quiet, maxQuiet)
		}
	}
}

// differs reports whether the settings differ from have.
func (r *Reader) differs(have *Config) (bool, error) {
	now, err := r.Read()
	if err != nil {
		return false, err
	}
	before, err := have.YAML()
	if err != nil {
		return false, err
	}
	after, err := now.YAML()
	return err == nil && !bytes.Equal(before, after), err
}
