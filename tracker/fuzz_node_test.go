package tracker

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// FuzzNode puts hostile texts into every field of the Node and of a ServiceCIDR that is read.
func FuzzNode(f *testing.F) {
	f.Add("a", "192.168.0.2", "fd00::2", "InternalIP", "10.244.0.0/24", "fd00:10:244::/64", "10.96.0.0/12",
		ToBeDeletedTaint)
	f.Add("b\n", "::ffff:1.2.3.4", "010.0.0.1", "Hostname", "10.244.0.9/24", "0.0.0.0/0", "::/0", "other")
	f.Add("", "", "fe80::1%eth0", "ExternalIP", "", "10.0.0.0/33", "10.96.0.1", "")
	f.Fuzz(func(t *testing.T, zone, first, second, kind, podCIDR, other, serviceCIDR, taint string) {
		n := newNode(zone, first, second)
		n.Status.Addresses[0].Type = corev1.NodeAddressType(kind)
		n.Spec.PodCIDR, n.Spec.PodCIDRs = podCIDR, []string{podCIDR, other}
		n.Spec.Taints = []corev1.Taint{{Key: taint}}
		c := newServiceCIDR("hostile", serviceCIDR, other, serviceCIDR)
		node, ranges := n.DeepCopy(), c.DeepCopy()

		tr := newNeighbour(t)
		checkHostile(t, tr, tr.SetNode(n))
		checkNode(t, tr.Node())
		checkHostile(t, tr, tr.SetServiceCIDR(c))
		if !equality.Semantic.DeepEqual(node, n) || !equality.Semantic.DeepEqual(ranges, c) {
			t.Error("an object was changed")
		}
	})
}

// checkNode fails unless n keeps what its type promises.
func checkNode(t *testing.T, n *Node) {
	var families []Family
	for _, addr := range n.Addresses {
		if !addr.IsValid() || addr.IsUnspecified() || addr.Is4In6() || addr.Zone() != "" ||
			slices.Contains(families, FamilyOf(addr)) {
			t.Errorf("addresses %v", n.Addresses)
		}
		families = append(families, FamilyOf(addr))
	}
	if slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return !p.IsValid() || p != p.Masked() }) {
		t.Errorf("pod CIDRs %v", n.PodCIDRs)
	}
}
