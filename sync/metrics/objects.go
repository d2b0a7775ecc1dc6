package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/kube-nft/kube-nft/nft"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

// objectMetrics are about Kubernetes objects and what the proxy has made of them.
type objectMetrics struct {
	noLocal      *prometheus.GaugeVec
	elements     *prometheus.GaugeVec
	refused      *prometheus.CounterVec
	conflicts    prometheus.Gauge
	skippedPorts prometheus.Gauge
	unmet        prometheus.Gauge
	waiting      prometheus.Gauge
	unserved     prometheus.Gauge

	without map[tracker.PortID]lacking // ports counted in noLocal
}

// lacking says for which of its policies a port has endpoints only on other nodes.
type lacking struct{ internal, external bool }

func newObjectMetrics(f promauto.Factory, families []tracker.Family) *objectMetrics {
	o := &objectMetrics{
		noLocal: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
			Help: "Service ports with traffic policy Local that have endpoints, but none on this node.",
		}, []string{labelPolicy, labelFamily}),
		elements: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kube_nft_elements",
			Help: "Elements of each nftables set and map as of the last commit. set=\"allowed\" counts all sets of source " +
				"ranges together, and set=\"lists\", \"addresses\" and \"ports\" all maps of shared lists. Without affinity " +
				"maps, which packets fill.",
		}, []string{labelSet, labelFamily}),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kube_nft_refused_fields_total",
			Help: "Invalid fields of Kubernetes objects, by kind; counted each time that kube-nft reads the object.",
		}, []string{labelKind}),
		conflicts: f.NewGauge(prometheus.GaugeOpts{
			Name: "kube_nft_conflicts",
			Help: "Claims of Services to frontends that kube-nft serves for another Service.",
		}),
		skippedPorts: f.NewGauge(prometheus.GaugeOpts{
			Name: "kube_nft_skipped_ports",
			Help: "Service ports that this node skips, because the kernel refuses their rules.",
		}),
		unmet: f.NewGauge(prometheus.GaugeOpts{
			Name: "kube_nft_unmet_annotations",
			Help: "Annotations of Service ports that this node does not apply, because the kernel lacks a feature " +
				"or the quota of the namespace is used up.",
		}),
		waiting: f.NewGauge(prometheus.GaugeOpts{
			Name: "kube_nft_waiting_services",
			Help: "Services whose additions wait, because their namespace has used more than a tenth of the time, " +
				"or because a large change of it is not complete.",
		}),
		unserved: f.NewGauge(prometheus.GaugeOpts{
			Name: "kube_nft_unserved_services",
			Help: "Services that this node does not serve, because their namespace exceeds --namespace-quota.",
		}),
		without: make(map[tracker.PortID]lacking),
	}
	for _, kind := range []string{"Service", "EndpointSlice", "Node", "ServiceCIDR"} {
		o.refused.WithLabelValues(kind)
	}
	for _, family := range families {
		o.noLocal.WithLabelValues("internal", family.String())
		o.noLocal.WithLabelValues("external", family.String())
	}
	return o
}

// Refused counts an unusable field of an object of that kind.
func (m *Metrics) Refused(kind string) { m.objects.refused.WithLabelValues(kind).Inc() }

func (o *objectMetrics) observe(r *proxysync.Report, lengths map[nft.Family]map[string]int) {
	o.conflicts.Set(float64(r.Standing))
	o.skippedPorts.Set(float64(r.SkippedPorts))
	o.unmet.Set(float64(r.StandUnmet))
	o.waiting.Set(float64(r.Delta.Waiting))
	o.unserved.Set(float64(r.Delta.Unserved))
	for family, sets := range lengths {
		for name, n := range sets {
			o.elements.WithLabelValues(name, family.String()).Set(float64(n))
		}
	}
	for id := range r.Delta.Removed {
		o.setLacking(id, lacking{})
	}
	for _, p := range r.Delta.Changed {
		none := p.HasEndpoints && len(p.Local) == 0
		o.setLacking(p.ID, lacking{internal: none && p.InternalLocal, external: none && p.ExternalLocal})
	}
}

// setLacking counts a port by its new state instead of its old one.
func (o *objectMetrics) setLacking(id tracker.PortID, now lacking) {
	was := o.without[id]
	if was == now {
		return
	}
	family := id.Family.String()
	o.noLocal.WithLabelValues("internal", family).Add(oneIf(now.internal) - oneIf(was.internal))
	o.noLocal.WithLabelValues("external", family).Add(oneIf(now.external) - oneIf(was.external))
	if now == (lacking{}) {
		delete(o.without, id)
		return
	}
	o.without[id] = now
}
