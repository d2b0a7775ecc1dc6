package tracker

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// clusterIPs reads the cluster IP of each family: the entry of spec.clusterIPs with the index that
// the family has in spec.ipFamilies.
func (p *serviceParser) clusterIPs() map[Family]netip.Addr {
	spec := &p.obj.Spec
	ips := make(map[Family]netip.Addr, len(Families))
	if len(spec.IPFamilies) == 0 {
		if ip, ok := p.addr("spec.clusterIP", spec.ClusterIP); ok {
			ips[FamilyOf(ip)] = ip
		}
		return ips
	}
	for i, name := range spec.IPFamilies {
		family, ok := familyOf(name)
		if !ok {
			p.add(fmt.Sprintf("spec.ipFamilies[%d]", i), "%s is not IPv4 or IPv6", quote(string(name)))
			continue
		}
		if _, twice := ips[family]; twice {
			continue
		}
		if ip, ok := p.clusterIP(i, family); ok {
			ips[family] = ip
		}
	}
	return ips
}

// clusterIP reads spec.clusterIPs[i], which belongs to family. By the API's definition
// spec.clusterIP stands for the first entry.
func (p *serviceParser) clusterIP(i int, family Family) (_ netip.Addr, ok bool) {
	spec := &p.obj.Spec
	field, text := fmt.Sprintf("spec.clusterIPs[%d]", i), ""
	switch {
	case i < len(spec.ClusterIPs):
		text = spec.ClusterIPs[i]
	case i == 0:
		field, text = "spec.clusterIP", spec.ClusterIP
	default:
		return netip.Addr{}, false
	}
	ip, ok := p.addr(field, text)
	if ok && FamilyOf(ip) != family {
		p.add(field, "%s is not an %s address, but spec.ipFamilies[%d] is %s", quote(text), family, i, family)
		return netip.Addr{}, false
	}
	return ip, ok
}

// mostAddresses is how many external IPs, and how many addresses of a load balancer, a Service is served at. What its
// ports do changes at all of them in one commit.
const mostAddresses = CommitElements

// exceeds refuses field, and with it the rest of a list, if the list has mostAddresses addresses already.
func (p *serviceParser) exceeds(field string, addrs []netip.Addr) bool {
	if len(addrs) < mostAddresses {
		return false
	}
	p.add(field, "only the first %d addresses are served; use several Services", mostAddresses)
	return true
}

// externalIPs reads spec.externalIPs: those that this node allows, sorted and without duplicates.
func (p *serviceParser) externalIPs() (allowed []netip.Addr) {
	for i, text := range p.obj.Spec.ExternalIPs {
		field := fmt.Sprintf("spec.externalIPs[%d]", i)
		if p.exceeds(field, allowed) {
			break
		}
		ip, ok := p.addr(field, text)
		switch {
		case !ok:
		case p.allowed.Allows(ip):
			allowed = append(allowed, ip)
		default:
			p.add(field,
				"%s is not served: the nodes allow %s as external IPs; use a Service of type LoadBalancer, or allow the address "+
					"with --external-ips", ip, p.allowed)
		}
	}
	return distinct(allowed)
}

// ipModeRouter is a mode that the API is to have. Source: KEP-6272.
const ipModeRouter corev1.LoadBalancerIPMode = "Router"

// loadBalancers reads the addresses that the load balancer leaves to the nodes, sorted and without
// duplicates, and those of them that are of ipMode Router. Traffic to its other addresses comes with a
// destination of the balancer's choice.
func (p *serviceParser) loadBalancers() (ips, routers []netip.Addr) {
	for i, ingress := range p.obj.Status.LoadBalancer.Ingress {
		if ingress.IP == "" {
			continue // a host name only
		}
		field := fmt.Sprintf("status.loadBalancer.ingress[%d]", i)
		if p.exceeds(field, ips) {
			break
		}
		router := p.settings.Router
		if mode := ingress.IPMode; mode != nil && *mode != corev1.LoadBalancerIPModeVIP {
			if router = *mode == ipModeRouter; !router {
				if *mode != corev1.LoadBalancerIPModeProxy {
					p.add(field+".ipMode", "%s is not VIP, Proxy or Router; the address is left alone", quote(string(*mode)))
				}
				continue
			}
		}
		if ip, ok := p.addr(field+".ip", ingress.IP); ok {
			ips = append(ips, ip)
			if router {
				routers = append(routers, ip)
			}
		}
	}
	return distinct(ips), distinct(routers)
}

// sourceRanges reads spec.loadBalancerSourceRanges. A family is closed if its ranges are all invalid:
// the author of the Service wanted to limit the clients: to let all clients in would be worse than no load balancer.
// An invalid range counts for the family that it looks like, or for both.
func (p *serviceParser) sourceRanges() (ranges []netip.Prefix, closed map[Family]bool) {
	closed = make(map[Family]bool, len(Families))
	for i, text := range p.obj.Spec.LoadBalancerSourceRanges {
		prefix, err := parsePrefix(strings.TrimSpace(text))
		if err == nil {
			ranges = append(ranges, prefix)
			continue
		}
		p.add(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), "%v", err)
		dots, colons := strings.Contains(text, "."), strings.Contains(text, ":")
		closed[IPv4] = closed[IPv4] || dots || !colons
		closed[IPv6] = closed[IPv6] || colons || !dots
	}
	for _, prefix := range ranges {
		closed[FamilyOf(prefix.Addr())] = false
	}
	return ranges, closed
}

// addr reads an address of the Service, and refuses field if it is invalid.
func (p *serviceParser) addr(field, text string) (_ netip.Addr, ok bool) {
	addr, err := parseReachable(text)
	if err != nil {
		p.add(field, "%v", err)
	}
	return addr, err == nil
}
