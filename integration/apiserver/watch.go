package apiserver

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// defaultWatch is how long a watch without a timeout lasts.
const defaultWatch = 30 * time.Minute

// bookmarkInterval is the time between bookmarks.
const bookmarkInterval = time.Minute

// A stream is one watch under way.
type stream struct {
	server     *Server
	collection *collection
	selector   *selector
	enc        encoding
	out        *bufio.Writer
	flush      func() error

	bookmarks bool    // the client allows them
	version   uint64  // up to which changes were sent
	seen      signals // up to which signals were followed
}

// A frame is one event to send: an object, or the status of a watch.Error.
type frame struct {
	kind   watch.EventType
	entry  *entry
	status statusError
}

// watch answers with a stream of events.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, c *collection, selector *selector,
	enc encoding) statusError {
	query := r.URL.Query()
	controller := http.NewResponseController(w)
	st := &stream{
		server: s, collection: c, selector: selector, enc: enc,
		out: bufio.NewWriterSize(w, bufferSize), flush: controller.Flush,
		bookmarks: query.Get("allowWatchBookmarks") == "true",
	}
	streaming := query.Get("sendInitialEvents") == "true"
	initial, failure := st.begin(query.Get("resourceVersion"), streaming)
	if failure != nil {
		return failure
	}
	contentType := enc.contentType
	if enc.protobuf {
		contentType += ";stream=watch"
	}
	w.Header().Set("Content-Type", contentType)
	if streaming && s.compresses() && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		packed := gzip.NewWriter(w)
		defer packed.Close()
		st.out = bufio.NewWriterSize(packed, bufferSize)
		st.flush = func() error { return errors.Join(packed.Flush(), controller.Flush()) }
	}
	w.WriteHeader(http.StatusOK)
	ctx, cancel := context.WithTimeout(r.Context(), watchTimeout(query.Get("timeoutSeconds")))
	defer cancel()
	if st.send(initial) == nil {
		st.run(ctx)
	}
	return nil
}

func (s *Server) compresses() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults.compress
}

func watchTimeout(seconds string) time.Duration {
	if n, err := strconv.ParseInt(seconds, 10, 32); err == nil && n > 0 {
		return time.Duration(n) * time.Second
	}
	return defaultWatch
}

// begin fixes the version from which st follows the changes. It returns the earlier events: the
// present state, if requested.
func (st *stream) begin(version string, streaming bool) ([]frame, statusError) {
	s := st.server
	s.mu.Lock()
	defer s.mu.Unlock()
	st.seen = s.signals
	if streaming && s.faults.noWatchList {
		return nil, errNoWatchList(st.collection.gvk)
	}
	from, failure := s.parseVersion(version)
	if failure != nil {
		return nil, failure
	}
	if !streaming && from != 0 {
		st.version = from
		if from < st.collection.oldest {
			return nil, errExpired(from, st.collection.oldest)
		}
		return nil, nil
	}
	st.version = s.version
	entries, _ := st.collection.list(st.selector, "", 0)
	frames := make([]frame, 0, len(entries)+1)
	for _, e := range entries {
		frames = append(frames, frame{kind: watch.Added, entry: e})
	}
	if streaming {
		frames = append(frames, st.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"}))
	}
	return frames, nil
}

// bookmark returns a bookmark at the version that was sent.
func (st *stream) bookmark(annotations map[string]string) frame {
	o := st.collection.empty()
	o.SetResourceVersion(strconv.FormatUint(st.version, 10))
	o.SetAnnotations(annotations)
	return frame{kind: watch.Bookmark, entry: newEntry(o, st.collection.gvk, st.version)}
}

// run sends events until ctx ends, the client goes or a fault ends the stream.
func (st *stream) run(ctx context.Context) {
	ticker := time.NewTicker(bookmarkInterval)
	defer ticker.Stop()
	for {
		frames, end, due, changed := st.next(time.Now())
		if st.send(frames) != nil || end {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-due:
		case <-ticker.C:
			if st.bookmarks && st.send([]frame{st.bookmark(nil)}) != nil {
				return
			}
		}
	}
}

// next returns the frames to send now, whether the stream ends with them, and otherwise what to
// wait for: a channel for the time when a delayed event is due, nil for none, and a channel that is
// closed on news.
func (st *stream) next(now time.Time) (frames []frame, end bool, due <-chan time.Time, changed <-chan struct{}) {
	s := st.server
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := st.seen
	st.seen = s.signals
	switch {
	case seen.cuts != s.signals.cuts:
		panic(http.ErrAbortHandler) // breaks the connection
	case seen.expiries != s.signals.expiries:
		return expired(errExpired(st.version, s.version)), true, nil, nil
	}
	changes, err := st.collection.since(st.version)
	if err != nil {
		return expired(err), true, nil, nil
	}
	if seen.replays != s.signals.replays {
		frames = st.replay(s.signals.replay)
	}
	for _, change := range changes {
		if wait := change.at.Add(s.faults.delay).Sub(now); s.faults.delay > 0 && wait > 0 {
			due = time.After(wait)
			break
		}
		st.version = change.version
		frames = st.appendChange(frames, &change, s.faults.duplicate)
	}
	if due == nil {
		st.version = s.version
	}
	if st.bookmarks && seen.bookmarks != s.signals.bookmarks {
		frames = append(frames, st.bookmark(nil))
	}
	return frames, false, due, s.changed
}

// replay returns the events of the latest n changes, backwards.
func (st *stream) replay(n int) []frame {
	history := st.collection.history
	var frames []frame
	for _, change := range slices.Backward(history[max(0, len(history)-n):]) {
		frames = st.appendChange(frames, &change, false)
	}
	return frames
}

func (st *stream) appendChange(frames []frame, change *change, twice bool) []frame {
	kind, e, ok := change.event(st.selector)
	if !ok {
		return frames
	}
	event := frame{kind: kind, entry: e}
	if twice {
		frames = append(frames, event)
	}
	return append(frames, event)
}

// expired ends a stream.
func expired(err statusError) []frame {
	return []frame{{kind: watch.Error, status: err}}
}

// send writes frames and flushes them; it flushes even if there are none, so that the
// client sees the header.
func (st *stream) send(frames []frame) error {
	for _, frame := range frames {
		if err := st.enc.event(st.out, frame.kind, st.body(frame)); err != nil {
			return err
		}
	}
	if err := st.out.Flush(); err != nil {
		return err
	}
	return st.flush()
}

func (st *stream) body(f frame) []byte {
	if f.status != nil {
		return st.enc.status(&f.status.ErrStatus)
	}
	return st.enc.object(f.entry)
}
