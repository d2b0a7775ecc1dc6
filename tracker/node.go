package tracker

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ToBeDeletedTaint marks nodes that the cluster autoscaler is about to remove.
const ToBeDeletedTaint = "ToBeDeletedByClusterAutoscaler"

// parseNode returns the content of obj and, joined, its invalid fields. The override addresses replace
// obj's addresses, family by family.
func parseNode(obj *corev1.Node, override []netip.Addr) (*Node, error) {
	r := invalidFields{kind: "Node", name: obj.Name}
	n := &Node{Name: obj.Name, Addresses: primaryAddresses(override, statusAddresses(obj, &r)),
		Zone: obj.Labels[corev1.LabelTopologyZone]}
	if len(obj.Spec.PodCIDRs) == 0 && obj.Spec.PodCIDR != "" {
		n.PodCIDRs = parsePrefixes(&r, func(int) string { return "spec.podCIDR" }, obj.Spec.PodCIDR)
	} else {
		n.PodCIDRs = parsePrefixes(&r, func(i int) string { return fmt.Sprintf("spec.podCIDRs[%d]", i) },
			obj.Spec.PodCIDRs...)
	}
	n.Ineligible = ineligible(obj)
	return n, r.err()
}

// shunningTaints keep load balancers from a node, whatever their effect.
var shunningTaints = []string{ToBeDeletedTaint, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeOutOfService}

// ineligible says why load balancers should look elsewhere, or nothing. A condition that is Unknown
// says nothing: then the network may still work.
func ineligible(obj *corev1.Node) string {
	if obj.DeletionTimestamp != nil {
		return "it is being deleted"
	}
	for _, condition := range obj.Status.Conditions {
		if condition.Type == corev1.NodeNetworkUnavailable && condition.Status == corev1.ConditionTrue {
			return "its condition NetworkUnavailable is True"
		}
	}
	for _, taint := range obj.Spec.Taints {
		if slices.Contains(shunningTaints, taint.Key) {
			return "it has the taint " + taint.Key
		}
	}
	return ""
}

// statusAddresses reads the internal addresses of the node, then the external ones.
func statusAddresses(obj *corev1.Node, r *invalidFields) []netip.Addr {
	var addrs []netip.Addr
	for _, kind := range [...]corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i, address := range obj.Status.Addresses {
			if address.Type != kind {
				continue
			}
			addr, err := parseReachable(address.Address)
			if err != nil {
				r.add(fmt.Sprintf("status.addresses[%d].address", i), "%v", err)
				continue
			}
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// primaryAddresses returns the first address of each family; addresses of override come before
// addresses of others. An unspecified override, as in "listen everywhere", overrides nothing.
func primaryAddresses(override, others []netip.Addr) []netip.Addr {
	var primary []netip.Addr
	for _, addrs := range [...][]netip.Addr{override, others} {
		for _, addr := range addrs {
			if !addr.IsUnspecified() && len(OfFamily(primary, FamilyOf(addr))) == 0 {
				primary = append(primary, addr)
			}
		}
	}
	return primary
}
