package tracker

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ProxyNameLabel leaves a Service to another proxy, whose name is the value. Source: SIG Network's
// well-known labels.
const ProxyNameLabel = "service.kubernetes.io/service-proxy-name"

// The bounds and default of spec.sessionAffinityConfig.clientIP.timeoutSeconds, in seconds, as the
// API server enforces them (MaxClientIPServiceAffinitySeconds in core/v1 validation).
const (
	minAffinity     = 1
	maxAffinity     = 86400
	defaultAffinity = corev1.DefaultClientIPServiceAffinitySeconds
)

// A service is the content of a Service, apart from endpoints and this node. It never changes.
type service struct {
	age
	ports   []port        // sorted by name and protocol, no two alike
	fronts  []front       // in the order of Families, one for each that the Service has
	timeout time.Duration // session affinity, zero for none

	internalLocal, externalLocal bool
	healthPort                   uint16
	settings                     Settings
}

// A port is one of spec.ports.
type port struct {
	name     string
	protocol Protocol
	number   uint16
	nodePort uint16 // 0: none
}

// compare orders ports as PortID.Compare orders their IDs.
func (p port) compare(q port) int {
	return cmp.Or(cmp.Compare(p.name, q.name), cmp.Compare(p.protocol, q.protocol))
}

// A front holds the addresses of a Service in one family.
type front struct {
	family        Family
	clusterIP     netip.Addr
	loadBalancers []netip.Addr
	routers       []netip.Addr // of loadBalancers
	externalIPs   []netip.Addr
	ranges        []netip.Prefix // merged loadBalancerSourceRanges; nil: all clients may connect
	closed        bool           // no source range of the family is valid: nothing for which they hold is served
}

// equal reports whether s and o mean the same; either may be nil.
func (s *service) equal(o *service) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.age.compare(o.age) == 0 && s.timeout == o.timeout &&
		s.internalLocal == o.internalLocal && s.externalLocal == o.externalLocal &&
		s.healthPort == o.healthPort && s.settings == o.settings && slices.Equal(s.ports, o.ports) &&
		slices.EqualFunc(s.fronts, o.fronts, front.equal)
}

func (f front) equal(o front) bool {
	return f.family == o.family && f.clusterIP == o.clusterIP &&
		slices.Equal(f.loadBalancers, o.loadBalancers) &&
		slices.Equal(f.routers, o.routers) &&
		slices.Equal(f.externalIPs, o.externalIPs) && slices.Equal(f.ranges, o.ranges) && f.closed == o.closed
}

// hasSourceRanges reports whether the Service has source ranges: what they mean depends on this node's addresses.
func (s *service) hasSourceRanges() bool {
	return s != nil && slices.ContainsFunc(s.fronts, func(f front) bool { return f.ranges != nil })
}

// parseService returns the content of obj and, joined, its invalid fields. It returns nil for a Service
// that is not for this proxy: headless, ExternalName, or labelled for another proxy.
func parseService(obj *corev1.Service, config *Config) (*service, error) {
	p := serviceParser{obj: obj, allowed: config.ExternalIPs,
		invalidFields: invalidFields{kind: kindService, namespace: obj.Namespace, name: obj.Name, uid: string(obj.UID)}}
	name, labelled := obj.Labels[ProxyNameLabel]
	ours := labelled == (config.ServiceProxyName != "") && name == config.ServiceProxyName
	ip := obj.Spec.ClusterIP
	if !p.checkNames(false) || !ours || obj.Spec.Type == corev1.ServiceTypeExternalName || ip == "" ||
		ip == corev1.ClusterIPNone {
		return nil, p.err()
	}
	p.settings = config.Defaults
	readAnnotations(serviceAnnotations, obj.Annotations, &p.settings, &p.invalidFields)
	s := &service{
		age:           age{obj.CreationTimestamp.UTC(), string(obj.UID)},
		ports:         p.ports(),
		fronts:        p.fronts(),
		timeout:       p.affinity(),
		internalLocal: p.internalLocal(),
		externalLocal: p.externalLocal(),
		settings:      p.settings,
	}
	s.healthPort = p.healthPort(s.externalLocal)
	return s, p.err()
}

// A serviceParser reads one Service field by field.
type serviceParser struct {
	obj      *corev1.Service
	allowed  ExternalIPs
	settings Settings
	invalidFields
}

// ports reads spec.ports and leaves out refused ports.
func (p *serviceParser) ports() []port {
	ports := make([]port, 0, len(p.obj.Spec.Ports))
	seen := make(map[port]int, len(p.obj.Spec.Ports)) // by name and protocol alone
	for i := range p.obj.Spec.Ports {
		parsed, ok := p.port(i)
		if !ok {
			continue
		}
		id := port{name: parsed.name, protocol: parsed.protocol}
		if first, twice := seen[id]; twice {
			p.add(fmt.Sprintf("spec.ports[%d].name", i), "%s/%s is already the name of spec.ports[%d]", quote(id.name),
				id.protocol, first)
			continue
		}
		seen[id] = i
		ports = append(ports, parsed)
	}
	slices.SortFunc(ports, port.compare)
	return ports
}

// port reads spec.ports[i].
func (p *serviceParser) port(i int) (_ port, ok bool) {
	spec, field := &p.obj.Spec.Ports[i], func(name string) string { return fmt.Sprintf("spec.ports[%d].%s", i, name) }
	if fault := nameFault(spec.Name, false); fault != "" && spec.Name != "" {
		p.add(field("name"), "%s", fault)
		return port{}, false
	}
	protocol, ok := protocolOf(spec.Protocol)
	if !ok {
		p.add(field("protocol"), "%s is not TCP, UDP or SCTP", quote(string(spec.Protocol)))
		return port{}, false
	}
	number, ok := portNumber(spec.Port)
	if !ok || number == 0 {
		p.add(field("port"), "%d is not in the range 1 to 65535", spec.Port)
		return port{}, false
	}
	nodePort, ok := portNumber(spec.NodePort)
	if !ok {
		p.add(field("nodePort"), "%d is not in the range 0 to 65535; the port has no node port", spec.NodePort)
	}
	return port{name: spec.Name, protocol: protocol, number: number, nodePort: nodePort}, true
}

// fronts reads the addresses of each family with a cluster IP. Without a cluster IP, a Service does
// not exist in a family, whatever else it lists there.
func (p *serviceParser) fronts() []front {
	clusterIPs := p.clusterIPs()
	if len(clusterIPs) == 0 {
		return nil
	}
	external := p.externalIPs()
	balancers, routers := p.loadBalancers()
	ranges, closed := p.sourceRanges()
	fronts := make([]front, 0, len(clusterIPs))
	for _, family := range Families {
		ip, ok := clusterIPs[family]
		if !ok {
			continue
		}
		own := slices.DeleteFunc(slices.Clone(ranges), func(r netip.Prefix) bool { return FamilyOf(r.Addr()) != family })
		if own = mergePrefixes(own); len(own) == 0 || own[0].Bits() == 0 {
			own = nil // no ranges, or ranges that allow every client
		}
		f := front{
			family: family, clusterIP: ip, ranges: own,
			loadBalancers: OfFamily(balancers, family), externalIPs: OfFamily(external, family),
			routers: OfFamily(routers, family),
		}
		if closed[family] {
			unserved := fmt.Sprintf("the %s addresses of the load balancer are", family)
			if p.settings.SourceRangesForNodePorts {
				unserved = fmt.Sprintf("the %s addresses of the load balancer and the %s node ports are", family, family)
			}
			p.add("spec.loadBalancerSourceRanges", "no %s range is valid; %s not served", family, unserved)
			f.loadBalancers, f.routers, f.closed = nil, nil, true
		}
		fronts = append(fronts, f)
	}
	return fronts
}

// affinity reads spec.sessionAffinity. A timeout out of range is replaced by the default, so that
// clients keep their endpoints as the Service's author wants.
func (p *serviceParser) affinity() time.Duration {
	switch kind := p.obj.Spec.SessionAffinity; kind {
	case corev1.ServiceAffinityNone, "":
		return 0
	case corev1.ServiceAffinityClientIP:
	default:
		p.add("spec.sessionAffinity", "%s is not None or ClientIP; there is no affinity", quote(string(kind)))
		return 0
	}
	seconds := int32(defaultAffinity)
	config := p.obj.Spec.SessionAffinityConfig
	if config != nil && config.ClientIP != nil && config.ClientIP.TimeoutSeconds != nil {
		seconds = *config.ClientIP.TimeoutSeconds
	}
	if seconds < minAffinity || seconds > maxAffinity {
		p.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds",
			"%d is not in the range %d to %d; %d is used", seconds, minAffinity, maxAffinity, defaultAffinity)
		seconds = defaultAffinity
	}
	return time.Duration(seconds) * time.Second
}

// internalLocal reads spec.internalTrafficPolicy.
func (p *serviceParser) internalLocal() bool {
	policy := p.obj.Spec.InternalTrafficPolicy
	if policy == nil {
		return false
	}
	switch *policy {
	case corev1.ServiceInternalTrafficPolicyLocal:
		return true
	case corev1.ServiceInternalTrafficPolicyCluster, "":
	default:
		p.add("spec.internalTrafficPolicy", "%s is not Cluster or Local; Cluster is used", quote(string(*policy)))
	}
	return false
}

// externalLocal reads spec.externalTrafficPolicy, which counts only for Services reachable from
// outside.
func (p *serviceParser) externalLocal() bool {
	switch policy := p.obj.Spec.ExternalTrafficPolicy; policy {
	case corev1.ServiceExternalTrafficPolicyLocal:
		kind := p.obj.Spec.Type
		return kind == corev1.ServiceTypeLoadBalancer || kind == corev1.ServiceTypeNodePort || len(p.obj.Spec.ExternalIPs) > 0
	case corev1.ServiceExternalTrafficPolicyCluster, "":
	default:
		p.add("spec.externalTrafficPolicy", "%s is not Cluster or Local; Cluster is used", quote(string(policy)))
	}
	return false
}

// healthPort reads spec.healthCheckNodePort. Load balancers ask there where to send clients of a
// Service with the external policy Local.
func (p *serviceParser) healthPort(externalLocal bool) uint16 {
	if p.obj.Spec.Type != corev1.ServiceTypeLoadBalancer || !externalLocal {
		return 0
	}
	number, ok := portNumber(p.obj.Spec.HealthCheckNodePort)
	if !ok || number == 0 {
		p.add("spec.healthCheckNodePort",
			"%d is not in the range 1 to 65535; load balancers cannot ask which nodes have endpoints",
			p.obj.Spec.HealthCheckNodePort)
	}
	return number
}
