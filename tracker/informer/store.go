package informer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/tracker"
)

// maxDeleted is how many deleted objects are known between two lists; beyond it, all are forgotten.
// They only guard against servers and proxies that repeat events out of order.
const maxDeleted = 4096

// A store passes what a reflector receives of one resource on to the sink. One goroutine uses it, and
// a timer while objects are missing.
//
// The store drops watch events that are older than what it knows: a repeated or late event must not
// undo a newer one. It takes a list as it is, even with lower versions, as after a restore of the
// cluster from a backup.
type store struct {
	resource
	sink    tracker.Sink
	options *Options
	listed  func()     // called when the sink has everything, or the resource is unavailable; idempotent
	failing quota.Once // requests

	mu       sync.Mutex
	versions map[cache.ObjectName]version // of what the sink holds, without missing ones
	deleted  map[cache.ObjectName]string  // versions of deletions since the last list
	complete bool                         // there was a list
	fresh    int                          // objects that lists have brought since the last whole one
	missing  missing
}

// A version is the resource version of an object, with the group that the object belongs to.
type version struct{ number, group string }

func newStore(resource resource, sink tracker.Sink, options *Options, listed func()) *store {
	return &store{
		resource: resource,
		sink:     sink,
		options:  options,
		listed:   listed,
		versions: make(map[cache.ObjectName]version),
		deleted:  make(map[cache.ObjectName]string),
	}
}

// reflector returns a reflector that writes to s.
func (s *store) reflector() *cache.Reflector {
	silent := logr.Discard()
	return cache.NewReflectorWithOptions(s.observed(), s.example, s, cache.ReflectorOptions{
		Name:    s.name,
		Logger:  &silent,
		Backoff: s.backoff(),
	})
}

// Limits of the pauses between retries; jitter makes them up to half as long again. The first
// bounds how late a node hears of changes after an outage. The second is for an optional resource
// that may never come. More than two minutes would have no effect: after them the reflector starts
// again with short pauses.
const (
	maxPause         = 10 * time.Second
	maxOptionalPause = time.Minute
)

// backoff spaces out retries of lists and watches. The first retry comes soon, for a broken
// connection; jitter spreads a cluster's nodes after an outage.
func (s *store) backoff() *wait.Backoff {
	limit := maxPause
	if s.optional {
		limit = maxOptionalPause
	}
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 20, Cap: limit}
}

// observed returns the requests for the resource; it reports their outcome.
func (s *store) observed() *cache.ListWatch {
	requests := s.listWatch()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := requests.ListWithContext(ctx, options)
			s.observe(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := requests.WatchWithContext(ctx, options)
			if err != nil && options.SendInitialEvents != nil {
				return nil, refusedStream(err)
			}
			s.observe(ctx, err)
			return events, err
		},
	}
}

// refusedStream returns the error of a streaming list in a form that makes the reflector request a
// plain list, which shows the outcome. With the original error, a refused connection would make the
// reflector sleep without regard to the end of its context.
func refusedStream(err error) error {
	if apierrors.IsTooManyRequests(err) || isExpired(err) {
		return err // a plain list would be a greater load; a new stream follows
	}
	return fmt.Errorf("streaming list: %v", err)
}

// observe calls Reached with err if it is news, and stops waiting for an unavailable resource.
func (s *store) observe(ctx context.Context, err error) {
	if ctx.Err() != nil || isExpired(err) {
		return
	}
	if s.optional && isUnavailable(err) {
		s.listed()
	}
	if err == nil && s.failing.Over() || err != nil && s.failing.Report(reason(err)) {
		s.options.Reached(s.name, explain(s.name, Concise(err)))
	}
}

// Transformer makes the sink take the objects of a streaming list as they come. The reflector would
// keep them all until the list is complete; it keeps their names instead, for Replace. A stream that
// breaks off leaves objects that may be gone by now: the next list shows which.
func (s *store) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.put(object.(metav1.Object)), nil
	}
}

// Add implements cache.ReflectorStore.
func (s *store) Add(object any) error {
	return s.Update(object)
}

// Update implements cache.ReflectorStore.
func (s *store) Update(object any) error {
	meta := object.(metav1.Object)
	name, version := cache.MetaObjectToName(meta), meta.GetResourceVersion()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !newer(version, s.versions[name].number) || !newer(version, s.deleted[name]) {
		return nil
	}
	s.set(name, version, object)
	s.options.Changed()
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *store) Delete(object any) error {
	meta := object.(metav1.Object)
	name, version := cache.MetaObjectToName(meta), meta.GetResourceVersion()
	s.mu.Lock()
	defer s.mu.Unlock()
	known, found := s.versions[name]
	if version != known.number && !newer(version, known.number) {
		return nil
	}
	if len(s.deleted) >= maxDeleted {
		clear(s.deleted)
	}
	s.deleted[name] = version
	if found {
		s.unset(name)
		s.options.Changed()
	} else if _, missing := s.missing.names[name]; missing {
		s.drop(name)
		s.found(name, "")
		s.options.Changed()
	}
	return nil
}

// Replace implements cache.ReflectorStore: objects is a complete list. Of what came by a stream, it
// has the names.
func (s *store) Replace(objects []any, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.deleted)
	listed := make(map[cache.ObjectName]bool, len(objects))
	for _, object := range objects {
		name, taken := object.(cache.ObjectName)
		if !taken {
			name = s.put(object.(metav1.Object))
		}
		listed[name] = true
	}
	before := len(s.versions) - s.fresh
	s.fresh = 0
	var gone []cache.ObjectName
	for name := range s.versions {
		if !listed[name] {
			gone = append(gone, name)
		}
	}
	// Objects that go one by one, as with their namespace, are watch events and do not count; a list lacks only what went
	// while no watch ran.
	if s.options.KeepMissing > 0 && s.complete && tracker.TooFew(before-len(gone), before) {
		s.keep(gone, before)
	} else {
		for _, name := range gone {
			s.unset(name)
		}
	}
	s.complete = true
	s.options.Changed()
	s.listed()
	return nil
}

// Resync implements cache.ReflectorStore. There is no cache to replay.
func (s *store) Resync() error {
	return nil
}

// put gives the sink an object of a list and returns its name. After a restore of the cluster the object may have
// a version that the sink has seen with another content. The sink ignores what it has already.
func (s *store) put(object metav1.Object) cache.ObjectName {
	name, version := cache.MetaObjectToName(object), object.GetResourceVersion()
	if _, found := s.versions[name]; !found {
		s.fresh++
	}
	s.set(name, version, object)
	return name
}

func (s *store) set(name cache.ObjectName, number string, object any) {
	v := version{number: number}
	if s.group != nil {
		v.group = s.group(object)
	}
	s.versions[name] = v
	delete(s.deleted, name)
	s.found(name, v.group)
	if err := s.resource.set(s.sink, object); err != nil {
		s.options.Refused(err)
	}
}

func (s *store) unset(name cache.ObjectName) {
	delete(s.versions, name)
	s.remove(s.sink, name.Namespace, name.Name)
}

// newer reports whether version comes after known, which is empty if nothing is known. A version
// that is not a number counts as newer: a repeated event is better than a lost one.
func newer(version, known string) bool {
	if known == "" {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(version, known)
	return err != nil || order > 0
}
