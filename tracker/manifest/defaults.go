package manifest

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// setDefaults fills in what an API server would, as far as it matters to a service proxy.
// Source: the defaulting functions of core/v1 and discovery/v1 in kubernetes/kubernetes.
func setDefaults(value metav1.Object) {
	switch value := value.(type) {
	case *corev1.Service:
		setNamespace(value)
		setServiceDefaults(&value.Spec)
		setIngressDefaults(value.Status.LoadBalancer.Ingress)
	case *discoveryv1.EndpointSlice:
		setNamespace(value)
		setSliceDefaults(value)
	default: // cluster-scoped
		value.SetNamespace("")
	}
}

func setNamespace(value metav1.Object) {
	if value.GetNamespace() == "" {
		value.SetNamespace(metav1.NamespaceDefault)
	}
}

func setServiceDefaults(spec *corev1.ServiceSpec) {
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	for i := range spec.Ports {
		if spec.Ports[i].Protocol == "" {
			spec.Ports[i].Protocol = corev1.ProtocolTCP
		}
	}
	setClusterIPs(spec)
	setAffinityDefaults(spec)
	setPolicies(spec)
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
			spec.IPFamilies = nil // the tracker says what is wrong with it
			return
		}
		family := corev1.IPv6Protocol
		if ip.Is4() {
			family = corev1.IPv4Protocol
		}
		spec.IPFamilies = append(spec.IPFamilies, family)
	}
}

func setAffinityDefaults(spec *corev1.ServiceSpec) {
	if spec.SessionAffinity == "" {
		spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return
	}
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

func setPolicies(spec *corev1.ServiceSpec) {
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

func setIngressDefaults(ingress []corev1.LoadBalancerIngress) {
	for i := range ingress {
		if ingress[i].IP != "" && ingress[i].IPMode == nil {
			ingress[i].IPMode = new(corev1.LoadBalancerIPModeVIP)
		}
	}
}

func setSliceDefaults(slice *discoveryv1.EndpointSlice) {
	for i := range slice.Ports {
		port := &slice.Ports[i]
		if port.Name == nil {
			port.Name = new("")
		}
		if port.Protocol == nil {
			port.Protocol = new(corev1.ProtocolTCP)
		}
	}
}
