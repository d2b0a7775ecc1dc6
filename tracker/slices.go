package tracker

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// A slice is the content of an EndpointSlice. It never changes.
type slice struct {
	name      string
	service   string // in the same namespace
	family    Family
	ports     []slicePort // sorted, and of equal ones in the order of the object
	endpoints []endpoint  // sorted, one for each address
	settings  SliceSettings
}

// A slicePort is one of the ports of an EndpointSlice: the Service port that it serves, and the
// port number of its endpoints.
type slicePort struct {
	name     string
	protocol Protocol
	number   uint16
}

// compare orders ports of a slice by the ports of the Service that they serve.
func (s slicePort) compare(name string, protocol Protocol) int {
	return cmp.Or(cmp.Compare(s.name, name), cmp.Compare(s.protocol, protocol))
}

// eachServed calls f for each port of a Service that the slice serves, with the indexes of the port and of the first
// of n ports of the slice that serve it. It skips what only one side has as eachAt does.
func (s *slice) eachServed(ports []port, f func(port, first, n int)) {
	for i, at := 0, 0; i < len(ports) && at < len(s.ports); {
		p, rest := &ports[i], s.ports[at:]
		switch c := rest[0].compare(p.name, p.protocol); {
		case c < 0:
			at += leap(len(rest), func(n int) bool { return rest[n].compare(p.name, p.protocol) >= 0 })
		case c > 0:
			i += leap(len(ports)-i, func(n int) bool { return rest[0].compare(ports[i+n].name, ports[i+n].protocol) <= 0 })
		default:
			n := 1
			for n < len(rest) && rest[n].compare(p.name, p.protocol) == 0 {
				n++
			}
			f(i, at, n)
			i, at = i+1, at+n
		}
	}
}

// An endpoint is one of the endpoints of an EndpointSlice. There may be hundreds of thousands:
// instead of node names it holds their meaning here, and names of zones are shared.
type endpoint struct {
	addr   netip.Addr
	zones  unique.Handle[string] // sorted, joined by zoneSeparator; valid only with zoneHint
	is     trait
	weight uint16
}

// A trait is a set of facts about an endpoint.
type trait uint16

const (
	ready       trait = 1 << iota // conditions.ready
	serving                       // conditions.serving
	terminating                   // conditions.terminating
	onNode                        // nodeName is this node
	nodeHint                      // hints.forNodes is not empty
	forNode                       // hints.forNodes has this node
	zoneHint                      // hints.forZones is not empty
	inZone                        // hints.forZones has this node's zone; only of candidates
	weighted                      // the weight is not 0: new connections are welcome
	impossible                    // no endpoint is

	anything trait = 0 // all endpoints are
)

const draining = serving | terminating

// zoneSeparator occurs in no label value, so in no name of a zone.
const zoneSeparator = "\x00"

// has reports whether all of want hold.
func (t trait) has(want trait) bool { return t&want == want }

// hasOne reports whether all of one of sets hold.
func (t trait) hasOne(sets []trait) bool {
	for _, set := range sets { // not slices.ContainsFunc: its calls are a tenth of a change of 100,000 endpoints
		if t.has(set) {
			return true
		}
	}
	return false
}

// forZone reports whether the endpoint is meant for clients in zone.
func (e *endpoint) forZone(zone string) bool {
	if !e.is.has(zoneHint) {
		return false
	}
	for name := range strings.SplitSeq(e.zones.Value(), zoneSeparator) {
		if name == zone {
			return true
		}
	}
	return false
}

// equal reports whether s and o mean the same.
func (s *slice) equal(o *slice) bool {
	return s.service == o.service && s.family == o.family &&
		s.settings == o.settings &&
		slices.Equal(s.ports, o.ports) && slices.Equal(s.endpoints, o.endpoints)
}

// hinted reports whether the meaning of the slice depends on this node's zone.
func (s *slice) hinted() bool {
	return slices.ContainsFunc(s.endpoints, func(e endpoint) bool { return e.is.has(zoneHint) })
}

// parseSlice returns the content of obj for the node of this name and, joined, its invalid fields. It
// returns nil for a slice that serves no Service of ours. It refuses a slice without the Service's
// label or with names instead of addresses; a slice of a headless Service is no fault.
func parseSlice(obj *discoveryv1.EndpointSlice, node string) (*slice, error) {
	r := invalidFields{kind: kindSlice, namespace: obj.Namespace, name: obj.Name, uid: string(obj.UID)}
	if _, headless := obj.Labels[corev1.IsHeadlessService]; !r.checkNames(true) || headless {
		return nil, r.err()
	}
	s := &slice{
		name: obj.Name, service: obj.Labels[discoveryv1.LabelServiceName], ports: make([]slicePort, 0, len(obj.Ports)),
		settings: defaultSliceSettings,
	}
	fault := "is missing: no Service has these endpoints; the slice is ignored"
	if s.service != "" {
		fault = nameFault(s.service, false)
	}
	if fault != "" {
		r.add("metadata.labels["+discoveryv1.LabelServiceName+"]", "%s", fault)
		return nil, r.err()
	}
	var ok bool
	if s.family, ok = familyOf(corev1.IPFamily(obj.AddressType)); !ok {
		r.add("addressType", "%s is not IPv4 or IPv6; the slice is ignored", quote(string(obj.AddressType)))
		return nil, r.err()
	}
	for i := range obj.Ports {
		spec, protocol, ok := &obj.Ports[i], TCP, true
		if spec.Name == nil || spec.Port == nil || *spec.Port == 0 {
			continue // it serves no port of a Service
		}
		if spec.Protocol != nil {
			protocol, ok = protocolOf(*spec.Protocol)
		}
		if !ok {
			r.add(fmt.Sprintf("ports[%d].protocol", i), "%s is not TCP, UDP or SCTP", quote(string(*spec.Protocol)))
			continue
		}
		number, ok := portNumber(*spec.Port)
		if !ok {
			r.add(fmt.Sprintf("ports[%d].port", i), "%d is not in the range 1 to 65535", *spec.Port)
			continue
		}
		s.ports = append(s.ports, slicePort{name: *spec.Name, protocol: protocol, number: number})
	}
	slices.SortFunc(s.ports, func(a, b slicePort) int {
		return cmp.Or(a.compare(b.name, b.protocol), cmp.Compare(a.number, b.number))
	})
	readAnnotations(sliceAnnotations, obj.Annotations, &s.settings, &r)
	s.endpoints = parseEndpoints(obj, s, node, &r)
	return s, r.err()
}

// parseEndpoints reads the endpoints; only their first address counts. It keeps endpoints that no
// condition makes usable: they may hide a terminating endpoint of the same address.
func parseEndpoints(obj *discoveryv1.EndpointSlice, s *slice, node string, r *invalidFields) []endpoint {
	endpoints := make([]endpoint, 0, len(obj.Endpoints))
	for i := range obj.Endpoints {
		spec := &obj.Endpoints[i]
		if len(spec.Addresses) == 0 {
			r.add(fmt.Sprintf("endpoints[%d].addresses", i), "is empty; the endpoint is ignored")
			continue
		}
		addr, err := parseReachable(spec.Addresses[0])
		if err == nil && addr.Is4() != (s.family == IPv4) {
			err = fmt.Errorf("%s is not an %s address, but addressType is %s", quote(spec.Addresses[0]), s.family, s.family)
		}
		if err != nil {
			r.add(fmt.Sprintf("endpoints[%d].addresses[0]", i), "%v", err)
			continue
		}
		e := endpoint{addr: addr, weight: s.settings.Weight}
		if e.weight > 0 {
			e.is |= weighted
		}
		if is := spec.Conditions.Ready; is == nil || *is {
			e.is |= ready
		}
		if is := spec.Conditions.Serving; is == nil || *is {
			e.is |= serving
		}
		if is := spec.Conditions.Terminating; is != nil && *is {
			e.is |= terminating
		}
		if spec.NodeName != nil && *spec.NodeName == node {
			e.is |= onNode
		}
		if spec.Hints != nil {
			e.hint(spec.Hints, node)
		}
		endpoints = append(endpoints, e)
	}
	if !slices.IsSortedFunc(endpoints, endpoint.compare) {
		slices.SortStableFunc(endpoints, endpoint.compare)
	}
	return slices.CompactFunc(endpoints, func(a, b endpoint) bool { return a.addr == b.addr })
}

// hint records for which nodes and zones the control plane has meant the endpoint. The zones' names
// become one shared string, in an order that does not depend on theirs.
func (e *endpoint) hint(hints *discoveryv1.EndpointHints, node string) {
	if len(hints.ForNodes) > 0 {
		e.is |= nodeHint
	}
	if slices.Contains(hints.ForNodes, discoveryv1.ForNode{Name: node}) {
		e.is |= forNode
	}
	if len(hints.ForZones) == 0 {
		return
	}
	e.is |= zoneHint
	e.zones = unique.Make(hints.ForZones[0].Name)
	if len(hints.ForZones) > 1 {
		names := make([]string, len(hints.ForZones))
		for i, zone := range hints.ForZones {
			names[i] = zone.Name
		}
		slices.Sort(names)
		e.zones = unique.Make(strings.Join(names, zoneSeparator))
	}
}

// compare orders endpoints by address. Among endpoints with the same address, the one to believe
// comes first: one that is not terminating, as pod addresses are reused before the old pod is gone;
// then one that is ready; then one that is serving.
func (e endpoint) compare(o endpoint) int {
	return cmp.Or(e.addr.Compare(o.addr), e.is.compare(o.is))
}

func (t trait) compare(o trait) int {
	return cmp.Or(cmp.Compare(t&terminating, o&terminating), cmp.Compare(o&ready, t&ready),
		cmp.Compare(o&serving, t&serving))
}
