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

// A slice is what an EndpointSlice says. It is never changed.
type slice struct {
	name      string
	service   string // in the same namespace
	family    Family
	ports     []slicePort
	endpoints []endpoint // sorted, one for each address
}

// A slicePort is one of the ports of an EndpointSlice: the port of the Service that it
// serves, and the number under which its endpoints do.
type slicePort struct {
	name     string
	protocol Protocol
	number   uint16
}

// serves reports whether this is the port p of the Service.
func (s *slicePort) serves(p *port) bool { return s.name == p.name && s.protocol == p.protocol }

// An endpoint is one of the endpoints of an EndpointSlice. There may be hundreds of
// thousands: names of nodes are not kept but their meaning here, names of zones are shared.
type endpoint struct {
	addr  netip.Addr
	zones unique.Handle[string] // sorted, joined by zoneSeparator; valid only with zoneHint
	is    trait
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
	impossible                    // no endpoint is
)

const draining = serving | terminating

// zoneSeparator occurs in no label value, so in no name of a zone.
const zoneSeparator = "\x00"

// has reports whether all of want hold.
func (t trait) has(want trait) bool { return t&want == want }

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
		slices.Equal(s.ports, o.ports) && slices.Equal(s.endpoints, o.endpoints)
}

// hinted reports whether what the slice means depends on this node's zone.
func (s *slice) hinted() bool {
	return slices.ContainsFunc(s.endpoints, func(e endpoint) bool { return e.is.has(zoneHint) })
}

// parseSlice returns what obj says for the node of that name and, joined, what of it is
// refused. It returns nil for a slice that serves no Service of ours: one without the
// Service's label or with names instead of addresses, which is refused, or one of a headless
// Service.
func parseSlice(obj *discoveryv1.EndpointSlice, node string) (*slice, error) {
	p := sliceParser{obj: obj, node: node, refusals: refusals{kind: "EndpointSlice", namespace: obj.Namespace, name: obj.Name}}
	if !p.relevant() {
		return nil, p.err()
	}
	family, ok := familyOf(corev1.IPFamily(obj.AddressType))
	if !ok {
		p.add("addressType", "%s is not IPv4 or IPv6; the slice is ignored", quote(string(obj.AddressType)))
		return nil, p.err()
	}
	return &slice{
		name:      obj.Name,
		service:   obj.Labels[discoveryv1.LabelServiceName],
		family:    family,
		ports:     p.ports(),
		endpoints: p.endpoints(family),
	}, p.err()
}

// A sliceParser reads one EndpointSlice field by field, for the node of that name.
type sliceParser struct {
	obj  *discoveryv1.EndpointSlice
	node string
	refusals
}

// relevant reports whether the labels of the slice name a Service that may be proxied.
func (p *sliceParser) relevant() bool {
	service := p.obj.Labels[discoveryv1.LabelServiceName]
	if _, headless := p.obj.Labels[corev1.IsHeadlessService]; headless {
		return false
	}
	fault := labelFault(service)
	if service == "" {
		fault = "is missing: no Service has these endpoints; the slice is ignored"
	}
	if fault != "" {
		p.add("metadata.labels["+discoveryv1.LabelServiceName+"]", "%s", fault)
	}
	return fault == ""
}

// ports reads the ports. Those without name or number serve no port of a Service.
func (p *sliceParser) ports() []slicePort {
	ports := make([]slicePort, 0, len(p.obj.Ports))
	for i := range p.obj.Ports {
		spec := &p.obj.Ports[i]
		if spec.Name == nil || spec.Port == nil || *spec.Port == 0 {
			continue
		}
		protocol, ok := TCP, true
		if spec.Protocol != nil {
			protocol, ok = protocolOf(*spec.Protocol)
		}
		if !ok {
			p.add(fmt.Sprintf("ports[%d].protocol", i), "%s is not TCP, UDP or SCTP", quote(string(*spec.Protocol)))
			continue
		}
		number, ok := portNumber(*spec.Port)
		if !ok {
			p.add(fmt.Sprintf("ports[%d].port", i), "%d is not in the range 1 to 65535", *spec.Port)
			continue
		}
		ports = append(ports, slicePort{name: *spec.Name, protocol: protocol, number: number})
	}
	return ports
}

// endpoints reads the endpoints, of which the first address counts. Those that no condition
// makes usable stay: they may hide a terminating endpoint of the same address.
func (p *sliceParser) endpoints(family Family) []endpoint {
	endpoints := make([]endpoint, 0, len(p.obj.Endpoints))
	for i := range p.obj.Endpoints {
		spec := &p.obj.Endpoints[i]
		if len(spec.Addresses) == 0 {
			p.add(fmt.Sprintf("endpoints[%d].addresses", i), "is empty; the endpoint is ignored")
			continue
		}
		addr, err := parseReachable(spec.Addresses[0])
		if err == nil && FamilyOf(addr) != family {
			err = fmt.Errorf("%s is not an %s address, but addressType is %s", quote(spec.Addresses[0]), family, family)
		}
		if err != nil {
			p.add(fmt.Sprintf("endpoints[%d].addresses[0]", i), "%v", err)
			continue
		}
		endpoints = append(endpoints, p.endpoint(spec, addr))
	}
	if !slices.IsSortedFunc(endpoints, endpoint.compare) {
		slices.SortStableFunc(endpoints, endpoint.compare)
	}
	return slices.CompactFunc(endpoints, func(a, b endpoint) bool { return a.addr == b.addr })
}

// compare orders endpoints by address and puts the one of several with the same address
// that is believed first: one that is not terminating, as addresses of pods are reused
// before the old pod is gone, then one that is ready, then one that is serving.
func (e endpoint) compare(o endpoint) int {
	if c := e.addr.Compare(o.addr); c != 0 {
		return c
	}
	return e.is.compare(o.is)
}

func (t trait) compare(o trait) int {
	return cmp.Or(cmp.Compare(t&terminating, o&terminating), cmp.Compare(o&ready, t&ready), cmp.Compare(o&serving, t&serving))
}

// endpoint reads what is known of the endpoint at addr.
func (p *sliceParser) endpoint(spec *discoveryv1.Endpoint, addr netip.Addr) endpoint {
	e := endpoint{addr: addr}
	e.set(ready, orDefault(spec.Conditions.Ready, true))
	e.set(serving, orDefault(spec.Conditions.Serving, true))
	e.set(terminating, orDefault(spec.Conditions.Terminating, false))
	e.set(onNode, spec.NodeName != nil && *spec.NodeName == p.node)
	if spec.Hints == nil {
		return e
	}
	e.set(nodeHint, len(spec.Hints.ForNodes) > 0)
	e.set(forNode, slices.ContainsFunc(spec.Hints.ForNodes, func(n discoveryv1.ForNode) bool { return n.Name == p.node }))
	if len(spec.Hints.ForZones) > 0 {
		e.set(zoneHint, true)
		e.zones = joinZones(spec.Hints.ForZones)
	}
	return e
}

// set records that t holds, if it does.
func (e *endpoint) set(t trait, holds bool) {
	if holds {
		e.is |= t
	}
}

// orDefault returns what condition points to, unset if it is nil.
func orDefault(condition *bool, unset bool) bool {
	if condition == nil {
		return unset
	}
	return *condition
}

// joinZones returns the names of zones as one shared string, in an order that does not
// depend on theirs.
func joinZones(zones []discoveryv1.ForZone) unique.Handle[string] {
	if len(zones) == 1 {
		return unique.Make(zones[0].Name)
	}
	names := make([]string, len(zones))
	for i, zone := range zones {
		names[i] = zone.Name
	}
	slices.Sort(names)
	return unique.Make(strings.Join(names, zoneSeparator))
}
