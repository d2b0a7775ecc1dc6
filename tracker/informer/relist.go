package informer

import (
	"fmt"
	"time"

	"k8s.io/client-go/tools/cache"
)

// missingRepeat is how often missing objects are reported.
const missingRepeat = time.Minute

// A missing has the objects that the sink keeps although the latest list lacks them, because it lacks nearly all. They
// stay until the source has them again, has another object of their group, or Options.KeepMissing has passed. All
// other objects are followed.
type missing struct {
	names  map[cache.ObjectName]string             // with their groups
	groups map[cache.ObjectName][]cache.ObjectName // missing objects by namespace and group
	of     int                                     // objects of the last complete list
	until  time.Time
	timer  *time.Timer
}

// keep keeps objects that a list lacks. A group that the list has follows the list: the
// endpoints of a Service are those of its slices together.
func (s *store) keep(gone []cache.ObjectName, of int) {
	there := make(map[cache.ObjectName]bool)
	lacking := make(map[cache.ObjectName]bool, len(gone))
	for _, name := range gone {
		lacking[name] = true
	}
	for name, known := range s.versions {
		if !lacking[name] {
			there[groupKey(name, known.group)] = true
		}
	}
	if len(s.missing.names) == 0 {
		s.missing = missing{
			names: make(map[cache.ObjectName]string), groups: make(map[cache.ObjectName][]cache.ObjectName),
			of: of, until: time.Now().Add(s.options.KeepMissing),
		}
		s.missing.timer = time.AfterFunc(min(missingRepeat, s.options.KeepMissing), s.tick)
	}
	for _, name := range gone {
		group := s.versions[name].group
		if group != "" && there[groupKey(name, group)] {
			s.unset(name)
			continue
		}
		delete(s.versions, name) // the next event of the object is a change, whatever its version
		s.missing.names[name] = group
		if group != "" {
			key := groupKey(name, group)
			s.missing.groups[key] = append(s.missing.groups[key], name)
		}
	}
	s.reportMissing()
}

// groupKey names a group of objects of the object's namespace.
func groupKey(name cache.ObjectName, group string) cache.ObjectName {
	return cache.ObjectName{Namespace: name.Namespace, Name: group}
}

// found takes an object that the source has again, or has deleted, off the missing ones. It drops the missing objects
// of its group.
func (s *store) found(name cache.ObjectName, group string) {
	if len(s.missing.names) == 0 {
		return
	}
	delete(s.missing.names, name)
	if key := groupKey(name, group); group != "" {
		for _, other := range s.missing.groups[key] {
			if _, missing := s.missing.names[other]; missing {
				s.drop(other)
			}
		}
		delete(s.missing.groups, key)
	}
	if len(s.missing.names) == 0 {
		s.reportMissing()
	}
}

// drop removes a missing object from the sink.
func (s *store) drop(name cache.ObjectName) {
	delete(s.missing.names, name)
	s.remove(s.sink, name.Namespace, name.Name)
}

// tick reports missing objects again, or drops them when their time is over.
func (s *store) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.missing.names) == 0 {
		return
	}
	if left := time.Until(s.missing.until); left > 0 {
		s.missing.timer.Reset(min(missingRepeat, left))
		s.reportMissing()
		return
	}
	for name := range s.missing.names {
		s.drop(name)
	}
	s.reportMissing()
	s.options.Changed()
}

// reportMissing reports the missing objects, or that there are none left.
func (s *store) reportMissing() {
	if len(s.missing.names) == 0 {
		s.missing.timer.Stop()
		s.missing = missing{}
		s.options.Missing(s.name, nil)
		return
	}
	s.options.Missing(s.name,
		fmt.Errorf("a new list of %s lacks %d of the %d that kube-nft knows; check that it is the right API server, with "+
			"all objects; kube-nft keeps the missing ones until the API server lists them, or until %s", s.name,
			len(s.missing.names), s.missing.of, s.missing.until.Format(time.TimeOnly)))
}
