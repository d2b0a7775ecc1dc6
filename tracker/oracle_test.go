package tracker

import (
	"net/netip"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// A view is an endpoint as the API has it, with the defaults filled in.
type view struct {
	at                          netip.AddrPort
	ready, serving, terminating bool
	here                        bool
	zones, nodes                []string
	weight                      uint16
}

// views lists the endpoints that the API objects have for p, by name of slice.
func (w *randomWorld) views(p *ServicePort) []view {
	var names []string
	for name := range w.slices {
		names = append(names, name.name)
	}
	slices.Sort(names)
	var all []view
	for _, name := range names {
		s := w.slices[objectName{p.ID.Namespace, name}]
		if _, headless := s.Labels[corev1.IsHeadlessService]; headless ||
			s.Labels[discoveryv1.LabelServiceName] != p.ID.Service || string(s.AddressType) != p.ID.Family.String() {
			continue
		}
		for _, port := range s.Ports {
			if *port.Name == p.ID.Port {
				for _, e := range s.Endpoints {
					all = believe(all, newView(e, uint16(*port.Port), s.Annotations["kube-nft.io/weight"]))
				}
			}
		}
	}
	return all
}

func newView(e discoveryv1.Endpoint, port uint16, weight string) view {
	v := view{
		weight:      1,
		at:          netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), port),
		ready:       e.Conditions.Ready == nil || *e.Conditions.Ready,
		serving:     e.Conditions.Serving == nil || *e.Conditions.Serving,
		terminating: e.Conditions.Terminating != nil && *e.Conditions.Terminating,
		here:        e.NodeName != nil && *e.NodeName == "node-a",
	}
	if n, err := strconv.ParseUint(weight, 10, 16); err == nil {
		v.weight = uint16(n)
	}
	if e.Hints != nil {
		for _, zone := range e.Hints.ForZones {
			v.zones = append(v.zones, zone.Name)
		}
		for _, node := range e.Hints.ForNodes {
			v.nodes = append(v.nodes, node.Name)
		}
	}
	return v
}

// believe adds v to all unless one of the same address is there that counts for more.
func believe(all []view, v view) []view {
	weight := func(v view) int {
		weight := 0
		for i, holds := range []bool{v.serving, v.ready, !v.terminating} {
			if holds {
				weight |= 1 << i
			}
		}
		return weight
	}
	i := slices.IndexFunc(all, func(o view) bool { return o.at == v.at })
	switch {
	case i < 0:
		return append(all, v)
	case weight(v) > weight(all[i]):
		all[i] = v
	}
	return all
}

// filter returns the views that pass.
func filter(all []view, pass func(view) bool) []view {
	return slices.DeleteFunc(slices.Clone(all), func(v view) bool { return !pass(v) })
}

// clusterWide is the rule for the cluster-wide list, word by word.
func clusterWide(all []view, zone string) []view {
	usable := filter(all, func(v view) bool { return v.ready })
	if len(usable) == 0 {
		return filter(all, func(v view) bool { return v.serving && v.terminating })
	}
	forUs := func(v view) bool { return slices.Contains(v.nodes, "node-a") }
	if !slices.ContainsFunc(usable, func(v view) bool { return v.nodes == nil }) && slices.ContainsFunc(usable, forUs) {
		return filter(usable, forUs)
	}
	inZone := func(v view) bool { return slices.Contains(v.zones, zone) }
	if zone != "" && !slices.ContainsFunc(usable, func(v view) bool { return v.zones == nil }) &&
		slices.ContainsFunc(usable, inZone) {
		return filter(usable, inZone)
	}
	return usable
}

// nodeLocal is the rule for the list of this node.
func nodeLocal(all []view) []view {
	here := filter(all, func(v view) bool { return v.here })
	if usable := filter(here, func(v view) bool { return v.ready }); len(usable) > 0 {
		return usable
	}
	return filter(here, func(v view) bool { return v.serving && v.terminating })
}

// checkEndpoints compares the lists of p with the rules.
func (w *randomWorld) checkEndpoints(t *testing.T, p *ServicePort) {
	p = p.withPorts()
	listed, zone := w.views(p), ""
	all := filter(listed, func(v view) bool { return v.weight > 0 })
	if w.node != nil {
		zone = w.node.Labels[corev1.LabelTopologyZone]
	}
	var cluster, local []view
	if !p.InternalLocal || p.External() {
		cluster = clusterWide(all, zone)
	}
	if p.InternalLocal || p.ExternalLocal {
		local = nodeLocal(all)
	}
	for _, list := range []*[]view{&cluster, &local} {
		most := len(*list) / 2
		for _, silent := range w.followed.Silent(p.ID) {
			if kept := filter(*list, func(v view) bool { return v.at != silent }); most > 0 && len(kept) < len(*list) {
				*list, most = kept, most-1
			}
		}
	}
	used := slices.Concat(cluster, local)
	for _, list := range []struct {
		name    string
		got     []netip.AddrPort
		weights []uint16
		want    []view
	}{
		{"Cluster", p.Cluster, p.ClusterWeights, cluster},
		{"Local", p.Local, p.LocalWeights, local},
		{"OnNode", p.OnNode, nil, filter(used, func(v view) bool { return v.here })},
		{"Serving", p.Serving, nil, filter(listed, func(v view) bool { return v.serving || v.ready })},
	} {
		want := make([]netip.AddrPort, 0, len(list.want))
		for _, v := range list.want {
			want = append(want, v.at)
		}
		slices.SortFunc(want, netip.AddrPort.Compare)
		if !slices.Equal(list.got, slices.Compact(want)) || !sorted(list.got) {
			t.Errorf("%v: %s %v, want %v", p.ID, list.name, list.got, want)
		}
		differ := false
		for _, v := range list.want {
			i := slices.Index(list.got, v.at)
			if list.weights != nil && i >= 0 && list.weights[i] != v.weight {
				t.Errorf("%v: %s: %v has weight %d, want %d", p.ID, list.name, v.at, list.weights[i], v.weight)
			}
			differ = differ || v.weight != list.want[0].weight
		}
		differ = differ && (p.hashes() || !p.long())
		if list.name != "OnNode" && list.name != "Serving" && len(p.LeftOut) == 0 && differ != (list.weights != nil) {
			t.Errorf("%v: %s: weights %v of %v", p.ID, list.name, list.weights, list.want)
		}
	}
	some := slices.ContainsFunc(all, func(v view) bool { return v.ready || v.serving && v.terminating })
	if p.HasEndpoints != some {
		t.Errorf("%v: HasEndpoints %v, want %v", p.ID, p.HasEndpoints, some)
	}
}
