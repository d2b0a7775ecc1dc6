package tracker_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/tracker"
)

// A tracker fed by hand: two endpoints, of which this node's own serves the internal policy Local.
func ExampleTracker() {
	t := tracker.New(tracker.Config{NodeName: "node-1"})
	local := corev1.ServiceInternalTrafficPolicyLocal
	t.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 80}}, InternalTrafficPolicy: &local,
		},
	})
	port, here, there := int32(8080), "node-1", "node-2"
	t.SetSlice(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(string), Port: &port}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.0.5"}, NodeName: &here}, {Addresses: []string{"10.244.1.5"}, NodeName: &there},
		},
	})
	for _, p := range t.Take().Changed {
		fmt.Println(p.ID, "on this node:", p.Endpoints(p.Local))
	}
	// Output: shop/web/tcp on this node: [10.244.0.5:8080]
}
