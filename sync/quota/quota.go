// Package quota limits how often the same thing is logged or reported, so that one tenant cannot flood
// the log or the API server, nor use up what others may report.
//
// A Quota is for reports about objects of namespaces. Declare it with its limits, and ask it before
// each report:
//
//	limit := quota.Quota{Interval: time.Minute, PerNamespace: 10, Total: 100, Exceeded: func(namespace string) {
//		log.Warn("too many …; the rest is not logged this minute")
//	}}
//	if limit.Allow(service.Namespace, service.Name) {
//		log.Warn(…)
//	}
//
// A Once is for one condition that lasts, such as a port that is in use:
//
//	if err := try(); failing.Fails(err) {
//		log.Warn(…)
//	}
package quota

import (
	"maps"
	"sync"
	"time"
)

// A Quota limits reports. The first report of a namespace in an interval is allowed even if Total is used
// up, so that a tenant cannot hide the reports of others. Its methods may be called from any
// goroutine. Do not change the limits after the first call.
type Quota struct {
	// Interval is the time that PerNamespace, Total and Firsts are about.
	Interval time.Duration
	// PerNamespace and Total limit the reports of one namespace and of all together; zero is no limit.
	PerNamespace, Total int
	// Firsts limits the namespaces that may make a first report beyond Total; zero is no limit.
	Firsts int
	// Repeat is the time after which the same report is allowed again, if that is more than Interval.
	Repeat time.Duration
	// Exceeded is called when Allow refuses a report because of the limits, once in an interval for each namespace, so
	// that the log says that lines are missing. It must not call Allow. It may be nil.
	Exceeded func(namespace string)

	mu            sync.Mutex
	began         time.Time // of the interval
	total, firsts int
	namespaces    map[string]*usage
	allowed       map[report]time.Time
}

// usage is what a namespace has reported in the interval.
type usage struct {
	reports  int
	exceeded bool
}

type report struct{ namespace, key string }

// Allow reports whether a report may be made about an object of a namespace. Reports with the same key
// are allowed once in an interval; an empty key stands for a report that is never the same.
func (q *Quota) Allow(namespace, key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now, this := time.Now(), report{namespace, key}
	if now.Sub(q.began) >= q.Interval {
		q.began, q.total, q.firsts, q.namespaces = now, 0, 0, make(map[string]*usage)
		maps.DeleteFunc(q.allowed, func(_ report, at time.Time) bool { return now.Sub(at) >= q.Repeat })
	}
	if at, ok := q.allowed[this]; ok && now.Sub(at) < max(q.Repeat, q.Interval) {
		return false
	}
	u := q.namespaces[namespace]
	if u == nil {
		u = new(usage)
		q.namespaces[namespace] = u
	}
	full := q.Total > 0 && q.total >= q.Total
	switch {
	case full && u.reports == 0 && (q.Firsts == 0 || q.firsts < q.Firsts):
		q.firsts++
	case full, q.PerNamespace > 0 && u.reports >= q.PerNamespace:
		if !u.exceeded && q.Exceeded != nil {
			q.Exceeded(namespace)
		}
		u.exceeded = true
		return false
	default:
		q.total++
	}
	if q.allowed == nil {
		q.allowed = make(map[report]time.Time)
	}
	u.reports++
	if key != "" {
		q.allowed[this] = now
	}
	return true
}

// A Once reports a condition once, and again when its text changes. Its methods may be called from any
// goroutine.
type Once struct {
	// Interval is the time after which the same text is reported again; zero is never.
	Interval time.Duration

	mu       sync.Mutex
	reported bool
	text     string
	at       time.Time
}

// Report reports whether to report a condition that has this text now.
func (o *Once) Report(text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if o.reported && o.text == text && (o.Interval == 0 || now.Sub(o.at) < o.Interval) {
		return false
	}
	o.reported, o.text, o.at = true, text, now
	return true
}

// Fails reports whether to report an error of what is tried again and again. Without an error, the condition is over.
func (o *Once) Fails(err error) bool {
	if err == nil {
		o.Over()
		return false
	}
	return o.Report(err.Error())
}

// Over says that the condition has ended, and reports whether it had been reported.
func (o *Once) Over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() { o.reported = false }()
	return o.reported
}
