package nft

import "time"

// An Element is what a set holds under a key; the key itself is the map key that leads to
// it. The zero Element is that of a plain set.
type Element struct {
	// Data is the raw data of a map.
	Data string
	// Verdict is that of a verdict map; nil in other sets. It is shared and must not be changed.
	Verdict *Verdict
	// Comment is shown by nft list; at most 127 bytes, printable, without double quotes.
	Comment string
	// Life is set for elements that expire; nil for the lasting ones.
	Life *Life
}

// Equal reports whether e and f are the same, ages aside.
func (e Element) Equal(f Element) bool {
	return e.Data == f.Data && e.Comment == f.Comment &&
		(e.Verdict == f.Verdict || e.Verdict != nil && f.Verdict != nil && *e.Verdict == *f.Verdict)
}

// Life is the age of an element that expires. Units are those of the kernel, which counts
// milliseconds (NFTA_SET_ELEM_TIMEOUT, NFTA_SET_ELEM_EXPIRATION).
type Life struct {
	Timeout time.Duration // how long it lives when it is refreshed
	Expires time.Duration // how long it has still to live; zero means all of Timeout
}

// Elements is a set together with what it holds. For a Dynamic set that is what the
// packet path put there; Diff never compares it.
type Elements struct {
	Set *Set
	Map map[string]Element
}

// Covering returns the interval that contains key, field by field; empty if none does.
func (e *Elements) Covering(f Family, key string) string {
	n := e.Set.KeyLen(f)
	if len(key) != n {
		return ""
	}
	for interval := range e.Map {
		if len(interval) == 2*n && inside(f, e.Set.Key, interval, key) {
			return interval
		}
	}
	return ""
}

func inside(f Family, fields []Field, interval, key string) bool {
	low, high := interval[:len(key)], interval[len(key):]
	for _, field := range fields {
		n := field.padded(f, len(fields) > 1)
		if key[:n] < low[:n] || key[:n] > high[:n] {
			return false
		}
		key, low, high = key[n:], low[n:], high[n:]
	}
	return true
}

// Counted is what a set holds, with how many packets the counter of each element has seen.
type Counted struct {
	Elements map[string]Element
	Packets  map[string]uint64 // by key; nil if the set does not count
}
