package manifest

import (
	"cmp"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// setDefaults fills in an API server's defaults, as far as they matter to a Service proxy. Source:
// the defaulting functions of core/v1 and discovery/v1 in kubernetes/kubernetes.
func setDefaults(value metav1.Object) {
	switch value := value.(type) {
	case *corev1.Service:
		setServiceDefaults(&value.Spec)
		for i := range value.Status.LoadBalancer.Ingress {
			if ingress := &value.Status.LoadBalancer.Ingress[i]; ingress.IP != "" && ingress.IPMode == nil {
				ingress.IPMode = new(corev1.LoadBalancerIPModeVIP)
			}
		}
	case *discoveryv1.EndpointSlice:
		for i := range value.Ports {
			port := &value.Ports[i]
			if port.Name == nil {
				port.Name = new("")
			}
			if port.Protocol == nil {
				port.Protocol = new(corev1.ProtocolTCP)
			}
		}
	default:
		value.SetNamespace("") // cluster-scoped
		return
	}
	if value.GetNamespace() == "" {
		value.SetNamespace(metav1.NamespaceDefault)
	}
}

func setServiceDefaults(spec *corev1.ServiceSpec) {
	spec.Type = cmp.Or(spec.Type, corev1.ServiceTypeClusterIP)
	for i := range spec.Ports {
		spec.Ports[i].Protocol = cmp.Or(spec.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	setClusterIPs(spec)
	switch spec.SessionAffinity {
	case "":
		spec.SessionAffinity = corev1.ServiceAffinityNone
	case corev1.ServiceAffinityClientIP:
		if spec.SessionAffinityConfig == nil {
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{}
		}
		config := spec.SessionAffinityConfig
		if config.ClientIP == nil {
			config.ClientIP = &corev1.ClientIPConfig{}
		}
		if config.ClientIP.TimeoutSeconds == nil {
			config.ClientIP.TimeoutSeconds = new(corev1.DefaultClientIPServiceAffinitySeconds)
		}
	}
	if spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	if spec.InternalTrafficPolicy == nil {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	}
	external := spec.Type != corev1.ServiceTypeClusterIP || len(spec.ExternalIPs) > 0
	if spec.ExternalTrafficPolicy == "" && external {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
}

// setClusterIPs makes clusterIP and clusterIPs agree and derives the families.
func setClusterIPs(spec *corev1.ServiceSpec) {
	if spec.ClusterIP == "" && len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	if len(spec.ClusterIPs) == 0 && spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if len(spec.IPFamilies) > 0 {
		return
	}
	for _, text := range spec.ClusterIPs {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			spec.IPFamilies = nil // the tracker reports the error
			return
		}
		family := corev1.IPv6Protocol
		if ip.Is4() {
			family = corev1.IPv4Protocol
		}
		spec.IPFamilies = append(spec.IPFamilies, family)
	}
}
