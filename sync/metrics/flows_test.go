package metrics

import (
	"testing"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/sync/flows"
)

type someFlows []flows.Usage

func (f someFlows) Usages() []flows.Usage { return f }
func (f someFlows) State() flows.State    { return flows.State{Lost: 7} }

// TestFlows: each number is where it belongs.
func TestFlows(t *testing.T) {
	m := newTestMetrics(new(fakeKernel))
	m.CountFlows(someFlows{{
		Service: flows.Service{Namespace: "shop", Name: "web"}, Sent: conntrack.Counter{Packets: 1, Bytes: 2},
		Returned: conntrack.Counter{Packets: 3, Bytes: 4}, Ended: 6, Timed: 5, Seconds: 70.5,
		Durations: [...]uint64{1, 1, 2, 4, 5, 5, 5},
	}})
	check(t, m.Handler(zap.NewNop()), `
kube_nft_flow_lost_connections_total 7
kube_nft_service_bytes_total{direction="returned",namespace="shop",service="web"} 4
kube_nft_service_bytes_total{direction="sent",namespace="shop",service="web"} 2
kube_nft_service_connection_duration_seconds_bucket{namespace="shop",service="web",le="0.1"} 1
kube_nft_service_connection_duration_seconds_bucket{namespace="shop",service="web",le="10"} 2
kube_nft_service_connection_duration_seconds_bucket{namespace="shop",service="web",le="60"} 4
kube_nft_service_connection_duration_seconds_bucket{namespace="shop",service="web",le="+Inf"} 5
kube_nft_service_connection_duration_seconds_sum{namespace="shop",service="web"} 70.5
kube_nft_service_connection_duration_seconds_count{namespace="shop",service="web"} 5
kube_nft_service_ended_connections_total{namespace="shop",service="web"} 6
kube_nft_service_packets_total{direction="returned",namespace="shop",service="web"} 3
kube_nft_service_packets_total{direction="sent",namespace="shop",service="web"} 1
`)
}
