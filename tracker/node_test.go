package tracker

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNode(t *testing.T) {
	address := func(kind corev1.NodeAddressType, text string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: kind, Address: text}
	}
	const internal, external, host = corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName
	tests := []struct {
		name      string
		edit      func(*corev1.Node)
		override  []netip.Addr
		addresses string
		cidrs     string
		zone      string
		shunned   string
		refused   string
	}{
		{name: "nothing known", edit: func(*corev1.Node) {}, addresses: "nil", cidrs: "nil"},
		{name: "internal before external", edit: func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{address(external, "203.0.113.1"), address(host, "node-a"),
				address(internal, "10.0.0.1"), address(internal, "10.0.0.2")}
		}, addresses: "10.0.0.1", cidrs: "nil"},
		{name: "external alone", edit: func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{address(external, "203.0.113.1")}
		},
			addresses: "203.0.113.1", cidrs: "nil"},
		{name: "second family from the external addresses", edit: func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{address(external, "203.0.113.1"), address(internal, "fd00::1")}
		}, addresses: "fd00::1 203.0.113.1", cidrs: "nil"},
		{name: "bad address", edit: func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{address(internal, "x"), address(internal, "010.0.0.1")}
		}, addresses: "10.0.0.1", cidrs: "nil",
			refused: `Node node-a: status.addresses[0].address: "x" is not an IP address`},
		{name: "override of one family", edit: func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{address(internal, "10.0.0.1"), address(internal, "fd00::1")}
		}, override: addrs("fd00::9"), addresses: "fd00::9 10.0.0.1", cidrs: "nil"},
		{name: "unspecified override", edit: func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{address(internal, "10.0.0.1")}
		},
			override: addrs("0.0.0.0"), addresses: "10.0.0.1", cidrs: "nil"},
		{name: "pod CIDRs", edit: func(n *corev1.Node) {
			n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.1.0.0/24", []string{"10.1.0.0/24", "fd01::/64"}
		},
			addresses: "nil", cidrs: "10.1.0.0/24 fd01::/64"},
		{name: "pod CIDR alone", edit: func(n *corev1.Node) { n.Spec.PodCIDR = "10.1.0.0/24" }, addresses: "nil",
			cidrs: "10.1.0.0/24"},
		{name: "bad pod CIDR", edit: func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.1.0.0", "fd01::/64"} },
			addresses: "nil", cidrs: "fd01::/64",
			refused: `Node node-a: spec.podCIDRs[0]: "10.1.0.0" is not a CIDR`},
		{name: "bad single pod CIDR", edit: func(n *corev1.Node) { n.Spec.PodCIDR = "x" }, addresses: "nil", cidrs: "nil",
			refused: `Node node-a: spec.podCIDR: "x" is not a CIDR`},
		{name: "zone", edit: func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelTopologyZone: "a"} },
			addresses: "nil", cidrs: "nil", zone: "a"},
		{name: "being deleted", edit: func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: started} },
			addresses: "nil", cidrs: "nil", shunned: "it is being deleted"},
		{name: "autoscaler", edit: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "other"}, {Key: "ToBeDeletedByClusterAutoscaler"}}
		}, addresses: "nil", cidrs: "nil", shunned: "it has the taint ToBeDeletedByClusterAutoscaler"},
		{name: "no network, by condition", edit: func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "True"},
				{Type: "NetworkUnavailable", Status: "True"}}
		}, addresses: "nil", cidrs: "nil", shunned: "its condition NetworkUnavailable is True"},
		{name: "network, by condition", edit: func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: "NetworkUnavailable", Status: "False"},
				{Type: "NetworkUnavailable", Status: "Unknown"}, {Type: "Ready", Status: "False"}}
		}, addresses: "nil", cidrs: "nil"},
		{name: "no network, by taint", edit: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/network-unavailable", Effect: "NoSchedule"}}
		}, addresses: "nil", cidrs: "nil", shunned: "it has the taint node.kubernetes.io/network-unavailable"},
		{name: "out of service", edit: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/out-of-service", Value: "nodeshutdown",
				Effect: "NoExecute"}}
		}, addresses: "nil", cidrs: "nil", shunned: "it has the taint node.kubernetes.io/out-of-service"},
		{name: "not ready", edit: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/not-ready"}, {Key: "node.kubernetes.io/unschedulable"}}
		}, addresses: "nil", cidrs: "nil"},
		{name: "another taint", edit: func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "other"}} },
			addresses: "nil", cidrs: "nil"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTracker(Config{NodeAddresses: tt.override})
			n := newNode("")
			tt.edit(n)
			if err := tr.SetNode(n); errorText(err) != tt.refused {
				t.Errorf("refused %v, want %s", err, tt.refused)
			}
			got := tr.Take().Node
			if got.Name != "node-a" || got.Zone != tt.zone || got.Ineligible != tt.shunned {
				t.Errorf("got %+v", got)
			}
			if texts(got.Addresses) != tt.addresses || texts(got.PodCIDRs) != tt.cidrs {
				t.Errorf("addresses %s, pod CIDRs %s; want %s, %s", texts(got.Addresses), texts(got.PodCIDRs),
					tt.addresses, tt.cidrs)
			}
		})
	}
}

func TestNodeNameIsNormalised(t *testing.T) {
	tr := New(Config{NodeName: " Node-A\n"})
	must(t, tr.SetNode(newNode("a")))
	if d := tr.Take(); d.Node == nil {
		t.Error("the node is not recognised")
	}
}

// TestConfiguredAddressesNeedNoNode excuses load-balancer IPs before the Node is known.
func TestConfiguredAddressesNeedNoNode(t *testing.T) {
	tr := newTracker(Config{NodeAddresses: addrs("192.168.0.2")})
	must(t, tr.SetService(newService(balanced("198.51.100.1"), func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"192.168.0.0/24"}
	})))
	if got, want := texts(only(t, tr.Take()).Sources), "192.168.0.0/24 198.51.100.1/32"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestServiceCIDRs(t *testing.T) {
	tr := newTracker(Config{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}})
	steps := []struct {
		name    string
		act     func() error
		want    string // "" if nothing changes
		refused string
	}{
		{name: "configured", act: func() error { return nil }, want: "10.96.0.0/16"},
		{name: "an object", act: func() error {
			return tr.SetServiceCIDR(newServiceCIDR("a", "172.30.0.0/16", "fd00::/112"))
		},
			want: "10.96.0.0/16 172.30.0.0/16 fd00::/112"},
		{name: "the same range in another", act: func() error {
			return tr.SetServiceCIDR(newServiceCIDR("b", "172.30.0.0/16"))
		}},
		{name: "one of the two goes", act: func() error { tr.DeleteServiceCIDR("a"); return nil },
			want: "10.96.0.0/16 172.30.0.0/16"},
		{name: "an adjacent range", act: func() error { return tr.SetServiceCIDR(newServiceCIDR("a", "172.31.0.0/16")) },
			want: "10.96.0.0/16 172.30.0.0/15"},
		{name: "bad ones", act: func() error { return tr.SetServiceCIDR(newServiceCIDR("a", "x", "0.0.0.0/0")) },
			want: "10.96.0.0/16 172.30.0.0/16",
			refused: `ServiceCIDR a: spec.cidrs[0]: "x" is not a CIDR` +
				"\nServiceCIDR a: spec.cidrs: a CIDR of length 0 covers every address; it is ignored"},
		{name: "the other goes", act: func() error { tr.DeleteServiceCIDR("b"); return nil }, want: "10.96.0.0/16"},
	}
	for _, step := range steps {
		if err := step.act(); errorText(err) != step.refused {
			t.Errorf("%s: refused %v, want %s", step.name, err, step.refused)
		}
		d := tr.Take()
		if d.CIDRsChanged != (step.want != "") || d.CIDRsChanged && texts(d.ServiceCIDRs) != step.want {
			t.Errorf("%s: changed %v to %s, want %s", step.name, d.CIDRsChanged, texts(d.ServiceCIDRs), step.want)
		}
	}
}

// TestServiceCIDRsWithAnotherProxy does not claim addresses that the other proxy serves.
func TestServiceCIDRsWithAnotherProxy(t *testing.T) {
	tr := newTracker(Config{ServiceProxyName: "edge"})
	must(t, tr.SetServiceCIDR(newServiceCIDR("a", "10.96.0.0/16")))
	if d := tr.Take(); len(d.ServiceCIDRs) > 0 {
		t.Errorf("got %s, want none", texts(d.ServiceCIDRs))
	}
}

// TestNodeAddressesInDelta has them in a Delta when they have changed since the last one.
func TestNodeAddressesInDelta(t *testing.T) {
	internal := func(ip string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-a"},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}},
		}
	}
	for _, override := range [][]netip.Addr{nil, addrs("192.0.2.9")} {
		tr := newTracker(Config{NodeAddresses: override})
		check := func(step string, changed bool, want ...netip.Addr) {
			t.Helper()
			d := tr.Take()
			if d.AddressesChanged != changed || !slices.Equal(d.NodeAddresses, want) {
				t.Errorf("%s: %v, changed: %v; want %v, %v", step, d.NodeAddresses, d.AddressesChanged, want, changed)
			}
		}
		check("at start", override != nil, override...)
		must(t, tr.SetNode(internal("192.0.2.1")))
		if override != nil {
			check("overridden", false)
			continue
		}
		check("first", true, addrs("192.0.2.1")...)
		must(t, tr.SetNode(internal("192.0.2.2")))
		must(t, tr.SetNode(internal("192.0.2.1")))
		check("there and back", false)
		zoned := internal("192.0.2.1")
		zoned.Labels = map[string]string{corev1.LabelTopologyZone: "one"}
		must(t, tr.SetNode(zoned))
		check("the zone alone", false)
		must(t, tr.SetNode(internal("192.0.2.2")))
		check("moved", true, addrs("192.0.2.2")...)
		tr.DeleteNode("node-a")
		check("gone", false)
		must(t, tr.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}))
		check("back without an address", false)
		must(t, tr.SetNode(internal("192.0.2.3")))
		check("back with another one", true, addrs("192.0.2.3")...)
	}
}
