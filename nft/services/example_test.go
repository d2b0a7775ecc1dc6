package services_test

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// web feeds a tracker by hand with a Service and its one endpoint.
func web() *tracker.Tracker {
	t := tracker.New(tracker.Config{NodeName: "node-1"})
	meta := metav1.ObjectMeta{Namespace: "shop", Name: "web"}
	port := int32(8080)
	t.SetService(&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Port: 80}},
	}})
	t.SetSlice(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(string), Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.5"}}},
	})
	return t
}

// A dry run: objects in, the text of the ruleset out.
func Example_dryRun() {
	ruleset := services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}, MasqueradeBit: 14})
	ruleset.Apply(web().Take())
	for line := range strings.Lines(ruleset.Want().Text()) {
		if strings.Contains(line, "10.96.0.10 ") {
			fmt.Println(strings.TrimSpace(line))
		}
	}
	// Output:
	// elements = { 10.96.0.10 . tcp . 80 comment "shop/web" : goto cluster-1 }
	// elements = { 10.96.0.10 . tcp . 80 . 0 : 10.244.0.5 . 8080 }
	// elements = { 10.96.0.10 }
}

// An explanation says what becomes of a connection, and which elements and rules decide.
func Example_explain() {
	ruleset := services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}, MasqueradeBit: 14})
	ruleset.Apply(web().Take())
	e := readback.New(ruleset.Want()[nft.IP]).Explain(nft.Packet{
		Source: netip.MustParseAddr("10.244.1.9"), Destination: netip.MustParseAddr("10.96.0.10"), Protocol: 6, Port: 80,
		Interface: "eth0",
	})
	fmt.Println(e.Outcome, e.Endpoints)
	for _, fact := range e.Facts {
		fmt.Printf("%s: %s\n", fact.Topic, fact.Text)
	}
	// Output:
	// dnat [10.244.0.5:8080]
	// Frontend: cluster IP 10.96.0.10:80/tcp of Service shop/web
	// Policy: all endpoints
	// Endpoints: 10.244.0.5:8080
	// Masquerade: no: kube-nft cannot recognise pods (no cluster CIDR), so it masquerades no connection to a cluster IP
}
