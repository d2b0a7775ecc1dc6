package tracker

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-nft/kube-nft/nft/attr"
)

// Family is an IP family.
type Family = attr.Family

// The IP families; the zero value is neither.
const (
	IPv4 = attr.IPv4
	IPv6 = attr.IPv6
)

// Families lists both families in the order in which everything is printed.
var Families = attr.Families

// FamilyOf returns the family of addr. An IPv4-mapped IPv6 address counts as IPv6; the tracker
// never produces one. The zero address has no family.
func FamilyOf(addr netip.Addr) Family { return attr.Of(addr) }

// Protocol is a transport protocol by its IANA number, as in the IP header.
type Protocol uint8

// The protocols that a Service port can have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the protocol as nft prints it: tcp, udp or sctp.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprintf("%d", uint8(p))
}

// PortID names one port of one Service in one family. It is the unit of change.
type PortID struct {
	Namespace, Service string
	Port               string // Service.spec.ports[].name; empty for a single unnamed port
	Protocol           Protocol
	Family             Family
}

// A ServiceID names a Service.
type ServiceID struct{ Namespace, Service string }

// String returns "namespace/name:port/protocol", the form in logs and errors, without the colon if
// the port has no name. It leaves out the family, which the table in the error shows.
func (id PortID) String() string {
	service := id.Namespace + "/" + id.Service
	if id.Port != "" {
		service += ":" + id.Port
	}
	return service + "/" + id.Protocol.String()
}

// Compare orders PortIDs by namespace, Service, port, protocol and family.
func (id PortID) Compare(other PortID) int {
	switch { // strings that differ are compared once: a Service may have 10,000 ports
	case id.Namespace != other.Namespace:
		return strings.Compare(id.Namespace, other.Namespace)
	case id.Service != other.Service:
		return strings.Compare(id.Service, other.Service)
	case id.Port != other.Port:
		return strings.Compare(id.Port, other.Port)
	case id.Protocol != other.Protocol:
		return cmp.Compare(id.Protocol, other.Protocol)
	}
	return cmp.Compare(id.Family, other.Family)
}

// A ServicePort is what one port of a Service means on this node, in one family: where it can be
// reached and which endpoints serve it there. Traffic policies, conditions and topology are already
// resolved. No caller may write to it, to its PortSpec, to its Lists, which other ports share, or to its
// slices once Take has returned it; see With. The slices are sorted and free of duplicates.
type ServicePort struct {
	*PortSpec // never nil; mostly the same one while endpoints come and go

	// Lists are the endpoints; never nil. Ports of a Service with the same endpoints have the same Lists: a Service with
	// many ports and many endpoints has its endpoints once.
	*Lists
	// TargetPort is the port of all endpoints. Then those in Lists have port 0. See Endpoints. 0: there are no endpoints,
	// or their ports differ and stand in Lists.
	TargetPort uint16

	// HasEndpoints says that a ready, or serving and terminating, endpoint exists on some node whose
	// weight is not 0. If so, an empty list means drop, otherwise reject.
	HasEndpoints bool

	// LocalReady counts the distinct addresses of ready endpoints on this node over all
	// ports of the Service in this family; 0 without a HealthCheckNodePort.
	LocalReady int
}

// A PortSpec is what a ServicePort means whatever its endpoints: what the Service says, with what this node and the
// quota make of it.
type PortSpec struct {
	ID PortID

	// Created and UID order Services that claim one frontend: the older one wins, then
	// the smaller UID, then the smaller PortID. Source: metadata.creationTimestamp, .uid.
	Created time.Time
	UID     string

	Port          uint16       // at the cluster IP, load-balancer IPs and external IPs; never 0
	ClusterIP     netip.Addr   // always valid
	LoadBalancers []netip.Addr // status.loadBalancer.ingress of ipMode VIP or unset
	Routers       []netip.Addr // those of LoadBalancers of ipMode Router: where no endpoint may serve, packets pass
	ExternalIPs   []netip.Addr // spec.externalIPs, those that Config.ExternalIPs allows
	NodePort      uint16       // 0: none

	// HasSourceRanges says that load-balancer IPs take connections from Sources only; with RangesForNodePort the
	// node port does so, too, but for connections of this node itself. Sources are merged:
	// none overlaps another, and no two form one prefix. Two may still touch, as 10.0.1.0/24 and
	// 10.0.2.0/24 do. They include the load-balancer IPs themselves if this node's primary address
	// is in the ranges. HasSourceRanges implies Sources, and LoadBalancers or RangesForNodePort: ranges of the other
	// family alone, or ranges that contain every address, limit nothing here. Source: spec.loadBalancerSourceRanges.
	HasSourceRanges, RangesForNodePort bool
	Sources                            []netip.Prefix

	// InternalLocal restricts the cluster IP to Local. ExternalLocal restricts every other frontend,
	// for clients that are neither pods nor this node; it is false for a port without another
	// frontend, unless that is Leaving and Local is still being removed.
	InternalLocal, ExternalLocal bool

	// Affinity is how long a client keeps its endpoint after its latest new connection; 1s to 24h,
	// zero for none. Source: spec.sessionAffinity, .sessionAffinityConfig.clientIP.timeoutSeconds.
	// Several says that other ports of the Service have it, too.
	Affinity time.Duration
	Several  bool

	// HealthCheckNodePort is the port of the Service's health check server, 0 for none.
	// Source: spec.healthCheckNodePort of type LoadBalancer with external policy Local.
	HealthCheckNodePort uint16

	// Settings are what the Service asks for by annotations.
	Settings Settings
	// WithoutSlots says that Config.Quota leaves nothing for slot tables and repeated places.
	WithoutSlots bool

	// Leaving says that the port has been deleted and is being removed step by step: any other Service that claims
	// one of its frontends takes precedence. Delta.Leaving says it for all ports of a Service.
	Leaving bool
	// GivenUp are those of LoadBalancers and ExternalIPs, sorted, that the Service does not have any more. A later step
	// removes them. Any other Service that claims one of them takes precedence there.
	GivenUp []netip.Addr
}

// With returns p with a changed copy of its PortSpec.
func (p *ServicePort) With(change func(spec *PortSpec)) *ServicePort {
	q := *p
	q.PortSpec = new(*p.PortSpec)
	change(q.PortSpec)
	return &q
}

// ByAge orders Service ports: where two claim one frontend, the first one takes precedence.
func ByAge(p, q *ServicePort) int {
	return cmp.Or(age{p.Created, p.UID}.compare(age{q.Created, q.UID}), p.ID.Compare(q.ID))
}

// An age orders Services; names decide between equal ones.
type age struct {
	created time.Time
	uid     string
}

func (a age) compare(b age) int {
	return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.uid, b.uid))
}

// Frontends returns at how many places clients reach the port.
func (p *PortSpec) Frontends() int {
	n := 1 + len(p.LoadBalancers) + len(p.ExternalIPs)
	if p.NodePort != 0 {
		n++
	}
	return n
}

// External reports whether the port can be reached at more than its cluster IP.
func (p *PortSpec) External() bool {
	return p.Frontends() > 1
}

// Equal reports whether p and q mean the same.
func (p *ServicePort) Equal(q *ServicePort) bool {
	return p.TargetPort == q.TargetPort && p.Lists.equal(q.Lists) && p.EqualBesideEndpoints(q)
}

// EqualBesideEndpoints reports whether p and q mean the same but for their Lists and TargetPort.
func (p *ServicePort) EqualBesideEndpoints(q *ServicePort) bool {
	return p.HasEndpoints == q.HasEndpoints && p.LocalReady == q.LocalReady && p.PortSpec.equal(q.PortSpec)
}

// equal reports whether s and o mean the same. Mostly they are the same.
func (s *PortSpec) equal(o *PortSpec) bool {
	return s == o || s.ID == o.ID && s.Created.Equal(o.Created) && s.UID == o.UID &&
		s.Port == o.Port && s.ClusterIP == o.ClusterIP && s.NodePort == o.NodePort &&
		s.HasSourceRanges == o.HasSourceRanges && s.RangesForNodePort == o.RangesForNodePort &&
		s.InternalLocal == o.InternalLocal && s.ExternalLocal == o.ExternalLocal &&
		s.Affinity == o.Affinity && s.Several == o.Several && s.HealthCheckNodePort == o.HealthCheckNodePort &&
		s.Settings == o.Settings && s.WithoutSlots == o.WithoutSlots && s.Leaving == o.Leaving &&
		slices.Equal(s.GivenUp, o.GivenUp) && slices.Equal(s.LoadBalancers, o.LoadBalancers) &&
		slices.Equal(s.Routers, o.Routers) && slices.Equal(s.ExternalIPs, o.ExternalIPs) && sameList(s.Sources, o.Sources)
}

// A Node is what the proxy needs to know of its own node.
type Node struct {
	Name string
	// Addresses holds at most one address of each family, the primary family first.
	// Source: status.addresses, InternalIP before ExternalIP.
	Addresses []netip.Addr
	PodCIDRs  []netip.Prefix // spec.podCIDRs
	Zone      string         // label topology.kubernetes.io/zone
	// Ineligible says why load balancers should look elsewhere: the node is being deleted, has no
	// network, or carries one of three taints. Empty: they need not.
	Ineligible string
	// Gone says that there is no such object any more: the rest is what it was last.
	Gone bool
}

// Equal reports whether n and m mean the same; either may be nil.
func (n *Node) Equal(m *Node) bool {
	if n == nil || m == nil {
		return n == m
	}
	return n.Name == m.Name && n.Zone == m.Zone && n.Ineligible == m.Ineligible && n.Gone == m.Gone &&
		slices.Equal(n.Addresses, m.Addresses) && slices.Equal(n.PodCIDRs, m.PodCIDRs)
}

// An InvalidField says which field of which object the tracker could not use, and why. The rest of the
// object is in force.
type InvalidField struct {
	Kind, Namespace, Name string
	UID                   string // metadata.uid of a Service or EndpointSlice
	Field                 string // path in the object, e.g. "spec.ports[1].protocol"
	Reason                string // what was found and what is expected
}

func (f *InvalidField) Error() string {
	name := f.Name
	if f.Namespace != "" {
		name = f.Namespace + "/" + name
	}
	return fmt.Sprintf("%s %s: %s: %s", f.Kind, name, f.Field, f.Reason)
}
