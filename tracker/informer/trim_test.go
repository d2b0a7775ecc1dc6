package informer

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-nft/kube-nft/tracker"
)

var created = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

// clutter returns metadata as it looks in a cluster: most of it is of no use here.
func clutter(namespace, name string, labels map[string]string) metav1.ObjectMeta {
	labels["app.kubernetes.io/managed-by"] = "Helm"
	labels["app.kubernetes.io/instance"] = "shop-production"
	labels["helm.sh/chart"] = "shop-12.4.1"
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID("0f8d8bd2-" + name), ResourceVersion: "123456789",
		Generation: 7, GenerateName: name + "-", CreationTimestamp: created, Labels: labels,
		Annotations: map[string]string{
			corev1.EndpointsLastChangeTriggerTime:              "2026-01-02T03:04:05Z",
			"kubectl.kubernetes.io/last-applied-configuration": fmt.Sprintf("%01000d", 0),
		},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: name, UID: "0f8d8bd2"}},
		Finalizers:      []string{"service.kubernetes.io/load-balancer-cleanup"},
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "helm", Operation: "Update", APIVersion: "v1", Time: &created, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:spec":{"%01500d":{}}}`, 0)),
		}},
	}
}

func fullService(i int) *corev1.Service {
	name := fmt.Sprintf("web-%d", i)
	meta := clutter("shop", name, map[string]string{tracker.ProxyNameLabel: "edge"})
	meta.Annotations[tracker.AnnotationPrefix+"udp-unready"] = "keep"
	return &corev1.Service{
		ObjectMeta: meta,
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1", "fd00::1"},
			IPFamilies:     []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			Ports: []corev1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080, AppProtocol: new("http")},
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, NodePort: 30053},
			},
			Selector:                 map[string]string{"app": "web", "tier": "front"},
			ExternalIPs:              []string{"192.0.2.1"},
			LoadBalancerSourceRanges: []string{"198.51.100.0/24"},
			ExternalTrafficPolicy:    corev1.ServiceExternalTrafficPolicyLocal,
			InternalTrafficPolicy:    new(corev1.ServiceInternalTrafficPolicyLocal),
			HealthCheckNodePort:      30999,
			SessionAffinity:          corev1.ServiceAffinityClientIP,
			SessionAffinityConfig: &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(60))},
			},
		},
		Status: corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
				{IP: "203.0.113.1", IPMode: new(corev1.LoadBalancerIPModeVIP), Ports: []corev1.PortStatus{{Port: 80}}},
				{Hostname: "lb.example.org"},
			}},
			Conditions: []metav1.Condition{{Type: "Ready", Message: fmt.Sprintf("%0200d", 0)}},
		},
	}
}

func fullSlice(i int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("web-%d", i)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  clutter("shop", name+"-x7f2p", map[string]string{discoveryv1.LabelServiceName: name}),
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080)),
			AppProtocol: new("http")}},
	}
	for e := range 10 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.244.%d.%d", e, i%250), "10.0.0.1"},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			Hostname:   new(fmt.Sprintf("web-%d", e)),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: fmt.Sprintf("web-%d-5d9c7b-%05d", i, e),
				UID: "1c2d3e4f"},
			NodeName: new(fmt.Sprintf("node-%d", e)),
			Zone:     new("zone-a"),
			Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-a"}},
				ForNodes: []discoveryv1.ForNode{{Name: "node-1"}}},
		})
	}
	return slice
}

func fullNode(name string) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: clutter("", name, map[string]string{corev1.LabelTopologyZone: "zone-a"}),
		Spec: corev1.NodeSpec{
			PodCIDR: "10.244.0.0/24", PodCIDRs: []string{"10.244.0.0/24", "fd01::/64"}, ProviderID: "cloud://1",
			Taints: []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule},
				{Key: tracker.ToBeDeletedTaint, Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
				{Type: corev1.NodeHostName, Address: name}},
		},
	}
	for i := range 50 {
		node.Status.Images = append(node.Status.Images,
			corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example.org/image:%d", i)}})
	}
	return node
}

func fullServiceCIDR() *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: clutter("", "kubernetes", map[string]string{}),
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd00::/112"}},
		Status:     networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{Type: "Ready"}}},
	}
}

// TestTrimKeepsMeaning gives one tracker full objects and another trimmed ones: they must
// say the same of what they were given.
func TestTrimKeepsMeaning(t *testing.T) {
	for _, proxyName := range []string{"edge", ""} {
		trackerOf := func(trim bool) tracker.Delta {
			all := tracker.New(tracker.Config{
				NodeName: "node-1", ServiceProxyName: proxyName,
				Clock: func() time.Time { return created.Add(-time.Hour) },
			})
			give(t, all, trim)
			return all.Take()
		}
		full, trimmed := trackerOf(false), trackerOf(true)
		if diff := cmp.Diff(full, trimmed, cmp.Comparer(func(a, b *tracker.ServicePort) bool { return a.Equal(b) }),
			cmp.Comparer(func(a, b *tracker.Node) bool { return a == b || a != nil && b != nil && a.Equal(b) }),
			cmp.Comparer(func(a, b fmt.Stringer) bool { return a.String() == b.String() })); diff != "" {
			t.Errorf("proxy name %q (-full +trimmed):\n%s", proxyName, diff)
		}
		if want := map[string]int{"edge": 4, "": 0}[proxyName]; len(full.Changed) != want {
			t.Errorf("proxy name %q: %d ports, want %d", proxyName, len(full.Changed), want)
		}
	}
}

func give(t *testing.T, s tracker.Sink, trim bool) {
	t.Helper()
	service, slice, node, cidr := fullService(1), fullSlice(1), fullNode("node-1"), fullServiceCIDR()
	if trim {
		trimService(service)
		trimSlice(slice)
		trimNode(node)
		trimServiceCIDR(cidr)
	}
	for _, err := range []error{s.SetService(service), s.SetSlice(slice), s.SetNode(node), s.SetServiceCIDR(cidr)} {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestTrimKeepsFields lists what is left of an object, all else being zero.
func TestTrimKeepsFields(t *testing.T) {
	service := fullService(1)
	meta := metav1.ObjectMeta{
		Namespace: "shop", Name: "web-1", UID: "0f8d8bd2-web-1", ResourceVersion: "123456789", CreationTimestamp: created,
		Labels:      map[string]string{tracker.ProxyNameLabel: "edge"},
		Annotations: map[string]string{tracker.AnnotationPrefix + "udp-unready": "keep"},
	}
	want := service.DeepCopy()
	want.ObjectMeta, want.Spec.Selector, want.Spec.IPFamilyPolicy = meta, nil, nil
	want.Spec.Ports[0].AppProtocol = nil
	want.Status.Conditions = nil
	want.Status.LoadBalancer.Ingress[0].Ports = nil
	want.Status.LoadBalancer.Ingress[1].Hostname = ""
	for range 2 { // trimming twice changes nothing more
		trimService(service)
		if diff := cmp.Diff(want, service); diff != "" {
			t.Errorf("Service (-want +got):\n%s", diff)
		}
	}

	slice := fullSlice(1)
	slice.Annotations["Kube-NFT.io/misspelt"] = "x"
	wantSlice := slice.DeepCopy()
	wantSlice.ObjectMeta = metav1.ObjectMeta{
		Namespace: "shop", Name: "web-1-x7f2p", UID: "0f8d8bd2-web-1-x7f2p", ResourceVersion: "123456789",
		CreationTimestamp: created,
		Labels:            map[string]string{discoveryv1.LabelServiceName: "web-1"},
		Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05Z",
			"Kube-NFT.io/misspelt": "x"},
	}
	wantSlice.Ports[0].AppProtocol = nil
	for i := range wantSlice.Endpoints {
		endpoint := &wantSlice.Endpoints[i]
		endpoint.Addresses = endpoint.Addresses[:1]
		endpoint.Hostname, endpoint.TargetRef, endpoint.Zone = nil, nil, nil
	}
	trimSlice(slice)
	if diff := cmp.Diff(wantSlice, slice); diff != "" {
		t.Errorf("EndpointSlice (-want +got):\n%s", diff)
	}
}

func TestTrimKeepsHeadlessLabel(t *testing.T) {
	slice := fullSlice(1)
	slice.Labels[corev1.IsHeadlessService] = ""
	trimSlice(slice)
	if _, found := slice.Labels[corev1.IsHeadlessService]; !found {
		t.Error("the label that makes a slice irrelevant was trimmed")
	}
}

// TestMemory measures what one Service with ten endpoints costs while it is listed, as
// decoded and trimmed, and what is kept of it afterwards.
func TestMemory(t *testing.T) {
	const n = 2000
	measure := func(keep func(i int) any) int {
		kept := make([]any, n)
		before := heap()
		for i := range kept {
			kept[i] = keep(i)
		}
		after := heap()
		runtime.KeepAlive(kept)
		return int(after-before) / n
	}
	// What is decoded shares nothing, so neither does what is measured.
	decoded := measure(func(i int) any { return []any{decode(t, fullService(i)), decode(t, fullSlice(i))} })
	trimmed := measure(func(i int) any {
		service, slice := decode(t, fullService(i)), decode(t, fullSlice(i))
		trimService(service)
		trimSlice(slice)
		return []any{service, slice}
	})
	versions := make(map[cache.ObjectName]string)
	kept := measure(func(i int) any {
		for _, object := range []metav1.Object{decode(t, fullService(i)), decode(t, fullSlice(i))} {
			versions[cache.MetaObjectToName(object)] = object.GetResourceVersion()
		}
		return nil
	})
	t.Logf("bytes for a Service with ten endpoints: %d decoded, %d trimmed, %d kept", decoded, trimmed, kept)
	if trimmed*2 > decoded {
		t.Errorf("trimming %d bytes leaves %d", decoded, trimmed)
	}
	if kept > 1024 {
		t.Errorf("%d bytes are kept for two objects", kept)
	}
	runtime.KeepAlive(versions)
}

func heap() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// decode returns a copy of o that went through protobuf.
func decode[T any, O interface {
	*T
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}](t *testing.T, o O) O {
	t.Helper()
	data, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	copied := O(new(T))
	if err := copied.Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	return copied
}
