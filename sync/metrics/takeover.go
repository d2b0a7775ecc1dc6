package metrics

import "github.com/prometheus/client_golang/prometheus"

// Takeover adds kube_nft_takeover: how far the takeover from kube-proxy is, as one series
// for each of the states, 1 for the current one and 0 for the others. It must be called once
// at most; current may be called from any goroutine.
func (m *Metrics) Takeover(states []string, current func() string) {
	for _, state := range states {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "kube_nft_takeover",
			Help:        "How far the takeover from kube-proxy is: 1 for the current state. It waits for a live kube-proxy to end.",
			ConstLabels: prometheus.Labels{"state": state},
		}, func() float64 {
			if current() == state {
				return 1
			}
			return 0
		}))
	}
}
