package health

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/kube-nft/kube-nft/sync/web"
)

// A report is the body of /healthz and /livez, with kube-proxy's fields.
type report struct {
	// LastUpdated is now if the answer is 200: load balancers take an old time for a hanging proxy,
	// although nothing may have changed since.
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyReport `json:"status,omitempty"`
}

type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// report returns the state of the proxy, without the state of the Node.
func (p *Proxy) report() report {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	r := report{LastUpdated: p.updated, CurrentTime: now, Healthy: p.healthy(now), Status: make(map[string]familyReport)}
	for _, family := range p.families {
		r.Status[family.String()] = familyReport{LastUpdated: p.updated, Healthy: r.Healthy}
	}
	return r
}

// Healthz answers whether load balancers should send traffic to this node: 200 if the proxy is
// healthy and the Node exists and is not being deleted, else 503.
func (p *Proxy) Healthz(w http.ResponseWriter, _ *http.Request) {
	r, eligible := p.report(), p.Eligible()
	r.NodeEligible = &eligible
	r.write(w, r.Healthy && eligible)
}

// Livez answers whether the proxy works: 200 if it is healthy, else 503.
func (p *Proxy) Livez(w http.ResponseWriter, _ *http.Request) {
	r := p.report()
	r.write(w, r.Healthy)
}

// Readyz answers whether Services work on this node: 200 if a commit has succeeded since the
// process started, else 503.
func (p *Proxy) Readyz(w http.ResponseWriter, _ *http.Request) {
	code, text := http.StatusOK, "ok"
	if !p.Ready() {
		code, text = http.StatusServiceUnavailable, "nothing has been committed yet"
	}
	web.Answer(w, code, "text/plain; charset=utf-8", []byte(text))
}

func (r report) write(w http.ResponseWriter, ok bool) {
	code := http.StatusServiceUnavailable
	if ok {
		code, r.LastUpdated = http.StatusOK, r.CurrentTime
	}
	body, _ := json.Marshal(r) // has only what JSON can have
	web.Answer(w, code, "application/json", body)
}
