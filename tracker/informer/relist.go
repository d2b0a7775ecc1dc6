package informer

import (
	"fmt"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/kube-nft/kube-nft/tracker"
)

// doubtRepeat is how often it is told that a list is doubted.
const doubtRepeat = time.Minute

// A doubt is about objects that the latest list does not have. They stay as they were, until the
// source has them again, has another one of their group, or Options.DoubtFor has passed. All other
// objects are followed.
type doubt struct {
	held   map[cache.ObjectName]string             // with their groups
	groups map[cache.ObjectName][]cache.ObjectName // held objects by namespace and group
	of     int                                     // objects of the last list that was believed
	until  time.Time
	timer  *time.Timer
}

// doubts reports whether a list that lacks gone of n objects is doubted. Objects that go one by one, as with
// their namespace, are watch events and not doubted; a list lacks only what went while no watch ran.
func (s *store) doubts(gone, n int) bool {
	return s.options.DoubtFor > 0 && s.complete && tracker.TooFew(n-gone, n)
}

// hold keeps objects that a list does not have. A group that the list has follows the list: the
// endpoints of a Service are those of its slices together.
func (s *store) hold(gone []cache.ObjectName, of int) {
	there := make(map[cache.ObjectName]bool)
	missing := make(map[cache.ObjectName]bool, len(gone))
	for _, name := range gone {
		missing[name] = true
	}
	for name, known := range s.versions {
		if !missing[name] {
			there[groupKey(name, known.group)] = true
		}
	}
	if len(s.doubt.held) == 0 {
		s.doubt = doubt{
			held: make(map[cache.ObjectName]string), groups: make(map[cache.ObjectName][]cache.ObjectName),
			of: of, until: time.Now().Add(s.options.DoubtFor),
		}
		s.doubt.timer = time.AfterFunc(min(doubtRepeat, s.options.DoubtFor), s.ring)
	}
	for _, name := range gone {
		group := s.versions[name].group
		if group != "" && there[groupKey(name, group)] {
			s.unset(name)
			continue
		}
		delete(s.versions, name) // what a watch says of it is news, whatever version it has
		s.doubt.held[name] = group
		if group != "" {
			key := groupKey(name, group)
			s.doubt.groups[key] = append(s.doubt.groups[key], name)
		}
	}
	s.tellDoubt()
}

// groupKey names a group of objects of the object's namespace.
func groupKey(name cache.ObjectName, group string) cache.ObjectName {
	return cache.ObjectName{Namespace: name.Namespace, Name: group}
}

// believe ends the doubt about an object of which the source has spoken, and about its group.
func (s *store) believe(name cache.ObjectName, group string) {
	if len(s.doubt.held) == 0 {
		return
	}
	delete(s.doubt.held, name)
	if key := groupKey(name, group); group != "" {
		for _, other := range s.doubt.groups[key] {
			if _, held := s.doubt.held[other]; held {
				s.drop(other)
			}
		}
		delete(s.doubt.groups, key)
	}
	if len(s.doubt.held) == 0 {
		s.tellDoubt()
	}
}

// drop removes an object that was held.
func (s *store) drop(name cache.ObjectName) {
	delete(s.doubt.held, name)
	s.remove(s.sink, name.Namespace, name.Name)
}

// ring tells of a doubt again, or ends it.
func (s *store) ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.doubt.held) == 0 {
		return
	}
	if left := time.Until(s.doubt.until); left > 0 {
		s.doubt.timer.Reset(min(doubtRepeat, left))
		s.tellDoubt()
		return
	}
	for name := range s.doubt.held {
		s.drop(name)
	}
	s.tellDoubt()
	s.options.Changed()
}

// tellDoubt reports what is held.
func (s *store) tellDoubt() {
	if len(s.doubt.held) == 0 {
		s.doubt.timer.Stop()
		s.doubt = doubt{}
		s.options.Held(s.name, nil)
		return
	}
	s.options.Held(s.name,
		fmt.Errorf("a new list of %s lacks %d of %d that there were: is it the right API server, with all objects? "+
			"They stay as they were until it has them, or until %s", s.name, len(s.doubt.held), s.doubt.of,
			s.doubt.until.Format(time.TimeOnly)))
}
