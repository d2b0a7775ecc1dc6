package metrics

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// countingKernel answers with the same counts for every family.
type countingKernel struct{ err error }

func (k countingKernel) Connections(_ context.Context, f nft.Family, endpoints bool) ([]readback.Connections, error) {
	name := layout.PortName{Namespace: "shop", Name: "web", Port: "http"}
	at := tracker.NodePort(f, tracker.TCP, 30080)
	if !endpoints {
		list := []readback.Connections{{Frontend: at, Name: name, Count: 5}}
		if f == nft.IP {
			at.Address, at.Port = netip.MustParseAddr("10.96.0.10"), 80
			list = append(list, readback.Connections{Frontend: at, Name: name, Count: 1 << 40})
		}
		return list, k.err
	}
	ep := netip.MustParseAddrPort("10.244.0.5:8080")
	list := []readback.Connections{
		{Frontend: at, Name: name, Endpoint: ep, Count: 3},
		{Frontend: at, Name: name, Endpoint: ep, Local: true, Count: 2},
	}
	if f == nft.IP { // of a list that ports share
		list = append(list, readback.Connections{Name: layout.PortName{Namespace: "shop", Name: "many"},
			Endpoint: netip.AddrPortFrom(ep.Addr(), 0), Count: 7})
	}
	return list, k.err
}

func TestConnections(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newConnectionCollector(countingKernel{}.Connections, tracker.Families[:], true,
		new(sync.Mutex)))
	const want = `# HELP kube_nft_endpoint_connections_total Connections for which the rules chose the endpoint, by the frontend's list: all endpoints of the cluster, or those on this node. Connections that follow an affinity entry do not count. Where several ports of a Service share a list, the endpoint has no port, and the label port is empty.
# TYPE kube_nft_endpoint_connections_total counter
kube_nft_endpoint_connections_total{endpoint="10.244.0.5",frontend="*",list="cluster",namespace="shop",port="",service="many"} 7
kube_nft_endpoint_connections_total{endpoint="10.244.0.5:8080",frontend="0.0.0.0:30080/tcp",list="cluster",namespace="shop",port="http",service="web"} 3
kube_nft_endpoint_connections_total{endpoint="10.244.0.5:8080",frontend="0.0.0.0:30080/tcp",list="local",namespace="shop",port="http",service="web"} 2
kube_nft_endpoint_connections_total{endpoint="10.244.0.5:8080",frontend="[::]:30080/tcp",list="cluster",namespace="shop",port="http",service="web"} 3
kube_nft_endpoint_connections_total{endpoint="10.244.0.5:8080",frontend="[::]:30080/tcp",list="local",namespace="shop",port="http",service="web"} 2
# HELP kube_nft_service_connections_total Connections to each frontend of a Service port, also rejected and dropped ones. Each retry of an unanswered first packet counts. The counter restarts at zero when the verdict of the frontend changes.
# TYPE kube_nft_service_connections_total counter
kube_nft_service_connections_total{frontend="0.0.0.0:30080/tcp",namespace="shop",port="http",service="web"} 5
kube_nft_service_connections_total{frontend="10.96.0.10:80/tcp",namespace="shop",port="http",service="web"} 1.099511627776e+12
kube_nft_service_connections_total{frontend="[::]:30080/tcp",namespace="shop",port="http",service="web"} 5
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestConnectionsOfServicesAlone(t *testing.T) {
	collector := newConnectionCollector(countingKernel{}.Connections, tracker.Families[:1], false, new(sync.Mutex))
	if n := testutil.CollectAndCount(collector); n != 2 {
		t.Errorf("%d series, want 2", n)
	}
}

// TestConnectionsUnreadable: what cannot be read is an error, not a count of zero.
func TestConnectionsUnreadable(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newConnectionCollector(countingKernel{err: errors.New("no answer")}.Connections,
		tracker.Families[:1], false, new(sync.Mutex)))
	if families, err := registry.Gather(); err == nil || len(families) != 0 {
		t.Errorf("%v, %v", families, err)
	}
}

// TestLostCounts: what an endpoint's places lose in the kernel does not make its counter fall.
func TestLostCounts(t *testing.T) {
	counts := []uint64{100, 130, 90, 95}
	read := func(_ context.Context, f nft.Family, endpoints bool) ([]readback.Connections, error) {
		if !endpoints {
			return nil, nil
		}
		count := counts[0]
		counts = counts[1:]
		return []readback.Connections{{Frontend: tracker.NodePort(f, tracker.TCP, 30080),
			Endpoint: netip.MustParseAddrPort("10.244.0.5:8080"), Count: count}}, nil
	}
	c := newConnectionCollector(read, []tracker.Family{tracker.IPv4}, true, new(sync.Mutex))
	for _, want := range []float64{100, 130, 130, 135} {
		if got := testutil.ToFloat64(c); got != want {
			t.Errorf("the counter is %g, want %g", got, want)
		}
	}
}
