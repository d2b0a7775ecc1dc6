package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Shadow is what the shadow mode found at its last comparison.
type Shadow struct {
	Differences map[string]int // those that last, by kind
	Frontends   int            // that kube-proxy served
	Compared    time.Time      // zero if there was no comparison
	Seconds     float64        // that the last comparison took
}

var (
	shadowDifferencesDesc = prometheus.NewDesc("kube_nft_shadow_differences",
		"Lasting differences between kube-proxy's rules and those that kube-nft would have. Only with --mode=shadow.",
		[]string{labelKind}, nil)
	shadowFrontendsDesc = prometheus.NewDesc("kube_nft_shadow_frontends",
		"Frontends that kube-proxy served at the last comparison. Only with --mode=shadow.", nil, nil)
	shadowComparedDesc = prometheus.NewDesc("kube_nft_shadow_last_comparison_timestamp_seconds",
		"When kube-proxy's rules were last compared; 0 if they were not. Only with --mode=shadow.", nil, nil)
	shadowDurationDesc = prometheus.NewDesc("kube_nft_shadow_comparison_duration_seconds",
		"How long the last comparison took, with the reading of kube-proxy's rules. Only with --mode=shadow.", nil, nil)
)

// Shadow adds the metrics of the shadow mode. Call it once at most; state may be called from any goroutine.
func (m *Metrics) Shadow(state func() Shadow) {
	m.registry.MustRegister(&collector{[]*prometheus.Desc{shadowDifferencesDesc, shadowFrontendsDesc, shadowComparedDesc,
		shadowDurationDesc}, func(metrics chan<- prometheus.Metric) {
		s := state()
		for kind, n := range s.Differences {
			metrics <- gauge(shadowDifferencesDesc, float64(n), kind)
		}
		compared := 0.0
		if !s.Compared.IsZero() {
			compared = float64(s.Compared.UnixMilli()) / 1000
		}
		metrics <- gauge(shadowFrontendsDesc, float64(s.Frontends))
		metrics <- gauge(shadowComparedDesc, compared)
		metrics <- gauge(shadowDurationDesc, s.Seconds)
	}})
}
