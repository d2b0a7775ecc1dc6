package tracker

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// part is one slice of many of shop/web: n endpoints whose addresses lie between other
// slices'.
func part(number, first, n int) *discoveryv1.EndpointSlice {
	s := newSlice(fmt.Sprint("slice-", number))
	for i := first; i < first+n; i++ {
		s.Endpoints = append(s.Endpoints, newEndpoint(fmt.Sprintf("10.%d.%d.%d", i>>8, i&255, number)))
	}
	return s
}

// TestListings changes a Service of many slices by some endpoints, by more than are looked up, and to fewer slices than
// have listings: it has to end as a new Tracker begins.
func TestListings(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change map[int]*discoveryv1.EndpointSlice // by number; nil: deleted
	}{
		{"one endpoint goes", map[int]*discoveryv1.EndpointSlice{2: part(2, 0, 99)}},
		{"some of one slice are others", map[int]*discoveryv1.EndpointSlice{2: part(2, 32, 100)}},
		{"more than are looked up", map[int]*discoveryv1.EndpointSlice{2: part(2, 0, maxChanged+101)}},
		{"one slice is another", map[int]*discoveryv1.EndpointSlice{2: part(2, 100, 100)}},
		{"many in several slices", map[int]*discoveryv1.EndpointSlice{0: part(0, 20, 100), 1: part(1, 0, 60), 3: nil}},
		{"a few slices are left", map[int]*discoveryv1.EndpointSlice{1: nil, 3: nil, 4: part(4, 50, 100)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objects := make(map[int]*discoveryv1.EndpointSlice)
			for i := range manySlices + 1 {
				objects[i] = part(i, 0, 100)
			}
			tr := newTracker(Config{})
			tr.SetService(newService())
			for _, s := range objects {
				tr.SetSlice(s)
			}
			have := tr.Take()
			before := maps.Clone(objects)
			change := func(to map[int]*discoveryv1.EndpointSlice) {
				for i := range tt.change {
					if objects[i] = to[i]; to[i] == nil {
						tr.DeleteSlice("shop", fmt.Sprint("slice-", i))
					} else {
						tr.SetSlice(to[i])
					}
				}
				for d, more := tr.Take(), true; more; d = tr.Take() {
					have.Merge(d)
					more = !d.Due.IsZero()
				}
				comparePorts(t, byPort(have.Changed), byPort(fromScratch(objects).Changed))
			}
			change(tt.change)
			change(before)
		})
	}
}

func fromScratch(objects map[int]*discoveryv1.EndpointSlice) Delta {
	tr := newTracker(Config{})
	tr.SetService(newService())
	for _, s := range objects {
		if s != nil {
			tr.SetSlice(s)
		}
	}
	return tr.Take()
}

// TestOrderOfEndpoints: in what order a slice names its endpoints is no change.
func TestOrderOfEndpoints(t *testing.T) {
	tr, s := newTracker(Config{}), part(0, 0, 10)
	tr.SetService(newService())
	tr.SetSlice(s)
	tr.Take()
	slices.Reverse(s.Endpoints)
	tr.SetSlice(s)
	if d := tr.Take(); !d.Empty() {
		t.Errorf("got %+v", d)
	}
	if total, _ := tr.Changes(); total.Slices != 1 {
		t.Errorf("%d changes of slices, want 1", total.Slices)
	}
}
