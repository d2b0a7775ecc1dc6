package tracker

import "testing"

func TestChanges(t *testing.T) {
	tr := newTracker(Config{})
	check := func(step string, total, pending Changes) {
		t.Helper()
		if gotTotal, gotPending := tr.Changes(); gotTotal != total || gotPending != pending {
			t.Errorf("%s: got %v, %v pending, want %v, %v", step, gotTotal, gotPending, total, pending)
		}
	}
	check("nothing", Changes{}, Changes{})
	must(t, tr.SetService(newService()))
	must(t, tr.SetService(newService()))
	check("a Service twice", Changes{Services: 1}, Changes{Services: 1})
	tr.Take()
	check("taken", Changes{Services: 1}, Changes{})
	must(t, tr.SetSlice(newSlice("a", newEndpoint("10.0.0.1"))))
	tr.DeleteSlice("shop", "a")
	check("a slice came and went", Changes{Services: 1, Slices: 2}, Changes{Slices: 2})
	tr.DeleteSlice("shop", "unknown")
	check("nothing to delete", Changes{Services: 1, Slices: 2}, Changes{Slices: 2})
}

func TestServiceUID(t *testing.T) {
	tr := newTracker(Config{})
	svc := newService()
	svc.UID = "1-2-3"
	must(t, tr.SetService(svc))
	if got := tr.ServiceUID(svc.Namespace, svc.Name); got != "1-2-3" {
		t.Errorf("got %q", got)
	}
	if got := tr.ServiceUID(svc.Namespace, "unknown"); got != "" {
		t.Errorf("unknown Service: got %q", got)
	}
}
