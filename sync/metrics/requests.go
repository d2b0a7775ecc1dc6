package metrics

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// These names, labels and buckets are common to all Kubernetes components.
var (
	requestBuckets = []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	sizeBuckets    = []float64{64, 256, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
)

// CountRequests returns the adapters to which client-go reports its requests to the API server, for
// clientmetrics.Register, which a process calls once. Call it once, before the first scrape. Hosts
// are labels, paths are not.
func (m *Metrics) CountRequests() clientmetrics.RegisterOpts {
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		vec := prometheus.NewHistogramVec(native(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}),
			[]string{labelVerb, labelHost})
		m.registry.MustRegister(vec)
		return vec
	}
	counter := func(name, help, method string) *prometheus.CounterVec {
		vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help},
			[]string{labelCode, method, labelHost})
		m.registry.MustRegister(vec)
		return vec
	}
	return clientmetrics.RegisterOpts{
		RequestResult: results{counter("rest_client_requests_total",
			"Requests to the API server by status code (error without a response).", labelMethod)},
		RequestRetry: retries{counter("rest_client_request_retries_total",
			"Retries of requests to the API server, by the status code of the failed request.", labelVerb)},
		RequestLatency: latencies{histogram("rest_client_request_duration_seconds",
			"Duration of requests to the API server, without watches.", requestBuckets)},
		RateLimiterLatency: latencies{histogram("rest_client_rate_limiter_duration_seconds",
			"Time that requests to the API server waited for --kube-api-qps.", requestBuckets)},
		RequestSize: sizes{histogram("rest_client_request_size_bytes",
			"Size of request bodies sent to the API server.", sizeBuckets)},
		ResponseSize: sizes{histogram("rest_client_response_size_bytes",
			"Size of response bodies of the API server, without watches.", sizeBuckets)},
	}
}

// Adapters for client-go.
type (
	results   struct{ *prometheus.CounterVec }
	retries   struct{ *prometheus.CounterVec }
	latencies struct{ *prometheus.HistogramVec }
	sizes     struct{ *prometheus.HistogramVec }
)

// Increment counts an answer.
func (r results) Increment(_ context.Context, code, method, host string) {
	r.WithLabelValues(code, method, host).Inc()
}

// IncrementRetry counts a retry.
func (r retries) IncrementRetry(_ context.Context, code, verb, host string) {
	r.WithLabelValues(code, verb, host).Inc()
}

// Observe records the duration of a request.
func (l latencies) Observe(_ context.Context, verb string, u url.URL, d time.Duration) {
	l.WithLabelValues(verb, u.Host).Observe(d.Seconds())
}

// Observe records the length of a body in bytes.
func (s sizes) Observe(_ context.Context, verb, host string, size float64) {
	s.WithLabelValues(verb, host).Observe(size)
}
