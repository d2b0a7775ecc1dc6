package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kube-nft/kube-nft/sync/ejection"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestEjected: a Service has a series while an endpoint of it does not answer.
func TestEjected(t *testing.T) {
	var endpoints []ejection.Endpoint
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newEjectedCollector(func() []ejection.Endpoint { return endpoints }))
	if n, err := testutil.GatherAndCount(registry); n != 0 || err != nil {
		t.Errorf("%d series, %v", n, err)
	}
	endpoints = make([]ejection.Endpoint, 2)
	for i := range endpoints {
		endpoints[i].Port = tracker.PortID{Namespace: "shop", Service: "web", Protocol: tracker.TCP, Family: tracker.IPv4}
	}
	want := "# HELP kube_nft_ejected_endpoints Endpoints of a Service that get no new connections from this node " +
		"because they do not answer, or that are being tried again (kube-nft.io/eject). There is no series for a Service " +
		"without such an endpoint; an endpoint counts for each port.\n# TYPE kube_nft_ejected_endpoints gauge\n" +
		"kube_nft_ejected_endpoints{namespace=\"shop\",service=\"web\"} 2\n"
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
