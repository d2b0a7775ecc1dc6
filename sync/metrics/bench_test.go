package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

// BenchmarkCommitted is what metrics add to a sync of one port, and of the first one in a
// cluster of 20,000.
func BenchmarkCommitted(b *testing.B) {
	for _, ports := range []int{1, 20_000} {
		b.Run(fmt.Sprintf("ports=%d", ports), func(b *testing.B) {
			m := newTestMetrics(new(fakeKernel))
			lengths := services.NewRuleset(services.Config{Families: nft.Families[:]}).Lengths()
			r := proxysync.Report{Delta: tracker.Delta{}}
			for i := range ports {
				id := tracker.PortID{Namespace: "shop", Service: fmt.Sprint(i), Family: tracker.IPv4}
				r.Delta.Changed = append(r.Delta.Changed, &tracker.ServicePort{PortSpec: &tracker.PortSpec{ID: id},
					Lists: new(tracker.Lists)})
			}
			for b.Loop() {
				m.Committed(&r, lengths, kernel.Traffic{})
			}
		})
	}
}

func BenchmarkScrape(b *testing.B) {
	handler := used().Handler(zap.NewNop())
	request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	for b.Loop() {
		handler.ServeHTTP(httptest.NewRecorder(), request)
	}
}
