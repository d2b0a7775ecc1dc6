package config

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kube-nft/kube-nft/sync/quota"
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
// or invalid, have stays in force; problem receives each reason once, and each notice that is new.
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
	var failing quota.Once
	for notices := have.Notices; ; {
		now, changed, err := r.differs(have)
		if err == nil && !changed {
			for _, notice := range now.Notices {
				if !slices.Contains(notices, notice) {
					problem(errors.New(notice))
				}
			}
			notices = now.Notices
		}
		if changed {
			return true
		}
		if failing.Fails(err) {
			problem(err)
		}
		if !changes.Next(ctx, quiet, maxQuiet, rescan) {
			return false
		}
	}
}

// differs reads the settings, and reports whether they differ from have.
func (r *Reader) differs(have *Config) (now *Config, changed bool, err error) {
	if now, err = r.Read(); err != nil {
		return nil, false, err
	}
	before, err := have.YAML()
	if err != nil {
		return nil, false, err
	}
	after, err := now.YAML()
	return now, err == nil && !bytes.Equal(before, after), err
}
