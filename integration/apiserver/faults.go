package apiserver

import (
	"time"
)

// faults are the faults that are switched on.
type faults struct {
	failing      int             // HTTP status of every answer; 0: none
	forbidden    map[string]bool // resources
	hidden       map[string]bool
	noWatchList  bool
	noProtobuf   bool
	noWebSockets bool
	duplicate    bool
	compress     bool
	delay        time.Duration
}

func newFaults() faults {
	return faults{forbidden: make(map[string]bool), hidden: make(map[string]bool)}
}

// signals count the requests to all watches together. A watch compares them with the ones it has
// seen.
type signals struct {
	cuts, expiries, bookmarks, replays int
	replay                             int // changes to send again
}

// change alters faults or signals and wakes the watches.
func (s *Server) change(apply func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	apply()
	s.wake()
}

// CutWatches breaks the connections of all watches, without an end of their streams.
func (s *Server) CutWatches() {
	s.change(func() { s.signals.cuts++ })
}

// Gone forgets the history: all watches end with 410 Gone, and so do lists and watches
// that ask for a version before now.
func (s *Server) Gone() {
	s.change(func() {
		s.version++
		for _, c := range s.collections {
			c.forget(s.version)
		}
		s.signals.expiries++
	})
}

// Bookmark sends a bookmark to all watches that allow them. Otherwise they get one a minute.
func (s *Server) Bookmark() {
	s.change(func() { s.signals.bookmarks++ })
}

// Replay sends the latest n changes again to all watches, the latest first: late,
// repeated and out of order.
func (s *Server) Replay(n int) {
	s.change(func() { s.signals.replays, s.signals.replay = s.signals.replays+1, n })
}

// Duplicate lets every event be sent twice.
func (s *Server) Duplicate(on bool) {
	s.change(func() { s.faults.duplicate = on })
}

// Compress sends streaming lists, and the watches that go on from them, compressed to clients that take
// gzip, as servers do from 1.36 on.
func (s *Server) Compress() {
	s.change(func() { s.faults.compress = true })
}

// Delay lets events be sent d after they happened; lists and streaming lists are not
// delayed.
func (s *Server) Delay(d time.Duration) {
	s.change(func() { s.faults.delay = d })
}

// Fail answers every request with an HTTP status, 500 for instance, until it is called
// with 0. Watches that are under way go on.
func (s *Server) Fail(status int) {
	s.change(func() { s.faults.failing = status })
}

// Forbid answers requests for a resource, named in the plural, or for a subresource such as pods/exec with 403, or no
// longer.
func (s *Server) Forbid(resource string, on bool) {
	s.change(func() { s.faults.forbidden[resource] = on })
}

// Hide answers requests for a resource with 404, as if it were not served, or no longer.
func (s *Server) Hide(resource string, on bool) {
	s.change(func() { s.faults.hidden[resource] = on })
}

// DisableWatchList refuses streaming lists, as servers before 1.32 do.
func (s *Server) DisableWatchList() {
	s.change(func() { s.faults.noWatchList = true })
}

// DisableProtobuf serves JSON only.
func (s *Server) DisableProtobuf() {
	s.change(func() { s.faults.noProtobuf = true })
}

// Down closes all connections and refuses new ones; down=false listens again on the same
// address.
func (s *Server) Down(down bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if down {
		s.hangUp()
		return nil
	}
	if s.web != nil {
		return nil
	}
	return s.listen(s.address)
}
