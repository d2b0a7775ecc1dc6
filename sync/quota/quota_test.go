package quota

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// count returns how many of n different reports of a namespace are allowed.
func count(q *Quota, namespace string, n int) (allowed int) {
	for i := range n {
		key := "" // never the same
		if i%2 == 0 {
			key = fmt.Sprint(time.Now().UnixNano(), i)
		}
		if q.Allow(namespace, key) {
			allowed++
		}
	}
	return allowed
}

func TestLimitsPerNamespaceAndTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := Quota{Interval: time.Minute, PerNamespace: 10, Total: 25}
		for i, want := range []int{10, 10, 5, 1, 1} { // the first of a namespace is allowed beyond Total
			if got := count(&q, fmt.Sprint(i), 100); got != want {
				t.Errorf("namespace %d: %d allowed, want %d", i, got, want)
			}
		}
		time.Sleep(time.Minute)
		if got := count(&q, "0", 100); got != 10 {
			t.Errorf("in the next interval: %d allowed", got)
		}
	})
}

func TestFirstsAreLimited(t *testing.T) {
	q := Quota{Interval: time.Hour, Total: 20, Firsts: 50}
	allowed := 0
	for i := range 1000 {
		allowed += count(&q, fmt.Sprint(i), 2)
	}
	if allowed != 70 {
		t.Errorf("%d allowed, want Total and Firsts", allowed)
	}
}

func TestRepeatedReportsDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := Quota{Interval: time.Minute, PerNamespace: 2, Repeat: time.Hour, Exceeded: func(namespace string) {
			t.Errorf("the same report of %s counts as one too many", namespace)
		}}
		allowed := 0
		for range 120 {
			if q.Allow("shop", "web") {
				allowed++
			}
			time.Sleep(time.Minute)
		}
		if allowed != 2 {
			t.Errorf("%d allowed in two hours, want one an hour", allowed)
		}
		q.Allow("shop", "web")
		for range 10 {
			if q.Allow("shop", "web") {
				t.Error("the same report is allowed again")
			}
		}
		if !q.Allow("shop", "db") || !q.Allow("other", "web") {
			t.Error("other reports are refused")
		}
	})
}

func TestExceededOnceInAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var exceeded []string
		q := Quota{Interval: time.Minute, PerNamespace: 2, Exceeded: func(namespace string) {
			exceeded = append(exceeded, namespace)
		}}
		for i := range 2 {
			if count(&q, "shop", 2); len(exceeded) != i {
				t.Errorf("exceeded, although all were allowed: %v", exceeded)
			}
			count(&q, "shop", 10)
			if len(exceeded) != i+1 || exceeded[i] != "shop" {
				t.Errorf("exceeded is reported for %v in interval %d", exceeded, i)
			}
			time.Sleep(time.Minute)
		}
	})
}

func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forever, minute := Once{}, Once{Interval: time.Minute}
		for i, step := range []struct {
			text            string
			forever, minute bool
		}{{"", true, true}, {"", false, false}, {"in use", true, true}, {"", true, true}, {"", false, false},
			{"", false, true}} {
			if i == 5 {
				time.Sleep(time.Minute)
			}
			if f, m := forever.Report(step.text), minute.Report(step.text); f != step.forever || m != step.minute {
				t.Errorf("step %d: %t, %t", i, f, m)
			}
		}
		if !forever.Over() || forever.Over() {
			t.Error("the end is not reported once")
		}
		if !forever.Report("") {
			t.Error("not reported after the end")
		}
	})
}
