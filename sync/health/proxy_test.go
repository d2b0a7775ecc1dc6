package health

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

const timeout = time.Minute

var bothFamilies = []tracker.Family{tracker.IPv4, tracker.IPv6}

// newTestProxy returns a started Proxy of a node that load balancers may use.
func newTestProxy(node **tracker.Node) *Proxy {
	p := NewProxy(timeout, func() *tracker.Node { return *node }, proxysync.NewQueue())
	p.Start(bothFamilies)
	return p
}

func TestHealthyUnlessAChangeWaitsTooLong(t *testing.T) {
	wait := time.Sleep // of the bubble's clock
	for _, tt := range []struct {
		name string
		act  func(p *Proxy)
		want bool
	}{
		{"at start", func(*Proxy) {}, true},
		{"the first sync takes too long", func(*Proxy) { wait(timeout) }, false},
		{"almost too long", func(*Proxy) { wait(timeout - 1) }, true},
		{"nothing to do for a day", func(p *Proxy) { p.Updated(time.Now()); wait(24 * time.Hour) }, true},
		{"a change waits", func(p *Proxy) { p.Updated(time.Now()); wait(time.Hour); p.queue.Notify(); wait(timeout - 1) },
			true},
		{"a change waits too long",
			func(p *Proxy) { p.Updated(time.Now()); wait(time.Hour); p.queue.Notify(); wait(timeout) },
			false},
		{"later changes do not make it young", func(p *Proxy) {
			p.Updated(time.Now())
			wait(time.Hour)
			p.queue.Notify()
			wait(timeout / 2)
			p.queue.Notify()
			wait(timeout / 2)
		}, false},
		{"one that came during a sync waits on", func(p *Proxy) {
			taken := time.Now()
			wait(time.Second)
			p.queue.Notify()
			p.Updated(taken)
			wait(timeout)
		}, false},
		{"and is done with the next", func(p *Proxy) {
			taken := time.Now()
			wait(time.Second)
			p.queue.Notify()
			p.Updated(taken)
			wait(timeout)
			p.Updated(time.Now())
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := new(tracker.Node)
				p := newTestProxy(&node)
				tt.act(p)
				if got := p.Healthy(); got != tt.want {
					t.Errorf("healthy: %v, want %v", got, tt.want)
				}
			})
		})
	}
}

func TestNothingIsQueuedBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProxy(timeout, func() *tracker.Node { return nil }, proxysync.NewQueue())
		p.queue.Notify()
		time.Sleep(time.Hour) // the API server does not answer
		if !p.Healthy() {
			t.Error("unhealthy without anything that could be done")
		}
		checkAnswer(t, p.Livez, 200, "application/json",
			`{"lastUpdated":"2000-01-01T01:00:00Z","currentTime":"2000-01-01T01:00:00Z","healthy":true}`)
	})
}

func checkAnswer(t *testing.T, handler http.HandlerFunc, code int, contentType, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	handler(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != code || w.Body.String() != body {
		t.Errorf("got %d %s\nwant %d %s", w.Code, w.Body, code, body)
	}
	if got := w.Header().Get("Content-Type"); got != contentType {
		t.Errorf("Content-Type %q, want %q", got, contentType)
	}
	if got := w.Header().Get("X-Content-Type-Options"); got != "nosniff" {
		t.Errorf("X-Content-Type-Options %q", got)
	}
}

func TestAnswers(t *testing.T) {
	const (
		updated   = `"lastUpdated":"2000-01-01T00:00:00Z"`
		families  = `"status":{"IPv4":{` + updated + `,"healthy":true},"IPv6":{` + updated + `,"healthy":true}}}`
		sick      = `"status":{"IPv4":{` + updated + `,"healthy":false},"IPv6":{` + updated + `,"healthy":false}}}`
		aSecond   = `{"lastUpdated":"2000-01-01T00:00:01Z","currentTime":"2000-01-01T00:00:01Z",`
		unchanged = `{` + updated + `,"currentTime":"2000-01-01T00:00:01Z",`
		tooLate   = `{` + updated + `,"currentTime":"2000-01-01T00:01:00Z",`
	)
	for _, tt := range []struct {
		name                   string
		node                   *tracker.Node
		wait                   time.Duration
		healthzCode, livezCode int
		healthzBody, livezBody string
	}{
		{
			name: "all well", node: &tracker.Node{}, wait: time.Second,
			healthzCode: 200, healthzBody: aSecond + `"nodeEligible":true,"healthy":true,` + families,
			livezCode: 200, livezBody: aSecond + `"healthy":true,` + families,
		},
		{
			name: "Node is being deleted", node: &tracker.Node{Ineligible: "it is being deleted"}, wait: time.Second,
			healthzCode: 503, healthzBody: unchanged + `"nodeEligible":false,"healthy":true,` + families,
			livezCode: 200, livezBody: aSecond + `"healthy":true,` + families,
		},
		{
			name: "no Node", node: nil, wait: time.Second,
			healthzCode: 503, healthzBody: unchanged + `"nodeEligible":false,"healthy":true,` + families,
			livezCode: 200, livezBody: aSecond + `"healthy":true,` + families,
		},
		{
			name: "a change waits too long", node: &tracker.Node{}, wait: timeout,
			healthzCode: 503, healthzBody: tooLate + `"nodeEligible":true,"healthy":false,` + sick,
			livezCode: 503, livezBody: tooLate + `"healthy":false,` + sick,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newTestProxy(&tt.node)
				time.Sleep(tt.wait)
				checkAnswer(t, p.Healthz, tt.healthzCode, "application/json", tt.healthzBody)
				checkAnswer(t, p.Livez, tt.livezCode, "application/json", tt.livezBody)
			})
		})
	}
}

func TestReadyz(t *testing.T) {
	p := NewProxy(timeout, func() *tracker.Node { return nil }, proxysync.NewQueue())
	checkAnswer(t, p.Readyz, 503, "text/plain; charset=utf-8", "nothing has been committed yet")
	p.Start(bothFamilies)
	checkAnswer(t, p.Readyz, 503, "text/plain; charset=utf-8", "nothing has been committed yet")
	p.Updated(time.Now())
	checkAnswer(t, p.Readyz, 200, "text/plain; charset=utf-8", "ok")
}

// TestProxyClockMayJump holds what a waiting time is reckoned from to carry the monotonic
// clock, so that setting the wall clock makes no node unhealthy, and none healthy.
func TestProxyClockMayJump(t *testing.T) {
	var node *tracker.Node
	p := newTestProxy(&node)
	p.queue.Notify()
	oldest, newest := p.queue.Waiting()
	for name, at := range map[string]time.Time{"oldest": oldest, "newest": newest, "started": p.started,
		"updated": p.updated} {
		if at == at.Round(0) { // which takes the monotonic clock off
			t.Errorf("%s: %v follows a clock that is set", name, at)
		}
	}
}
