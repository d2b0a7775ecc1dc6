package informer

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"

	"github.com/kube-nft/kube-nft/tracker"
)

// A resource is one kind of object to read: where the server has it, which objects are wanted and
// which methods of the sink take them.
type resource struct {
	name     string // plural, as in paths and in RBAC rules
	client   cache.Getter
	labels   string         // label selector
	fields   string         // field selector
	example  runtime.Object // of the type that is expected
	optional bool           // kube-nft works without it
	set      func(tracker.Sink, any) error
	group    func(any) string // of an object: those of a group are one thing; nil: each is by itself
	remove   func(s tracker.Sink, namespace, name string)
	trim     func(any) // in place
}

// resources lists what is read with the given options.
func resources(client kubernetes.Interface, options Options) []resource {
	all := []resource{
		services(client, options.ProxyName),
		endpointSlices(client),
		serviceCIDRs(client),
	}
	if options.NodeName != "" {
		all = append(all, node(client, options.NodeName))
	}
	return all
}

func services(client kubernetes.Interface, proxyName string) resource {
	labels := "!" + tracker.ProxyNameLabel
	if proxyName != "" {
		labels = tracker.ProxyNameLabel + "=" + proxyName
	}
	return resource{
		name:    "services",
		client:  client.CoreV1().RESTClient(),
		labels:  labels,
		fields:  fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String(),
		example: &corev1.Service{},
		set:     func(s tracker.Sink, object any) error { return s.SetService(object.(*corev1.Service)) },
		remove:  tracker.Sink.DeleteService,
		trim:    func(object any) { trimService(object.(*corev1.Service)) },
	}
}

func endpointSlices(client kubernetes.Interface) resource {
	return resource{
		name:    "endpointslices",
		client:  client.DiscoveryV1().RESTClient(),
		labels:  discoveryv1.LabelServiceName + ",!" + corev1.IsHeadlessService, // others are of no Service that we serve
		example: &discoveryv1.EndpointSlice{},
		set:     func(s tracker.Sink, object any) error { return s.SetSlice(object.(*discoveryv1.EndpointSlice)) },
		group: func(object any) string {
			return object.(*discoveryv1.EndpointSlice).Labels[discoveryv1.LabelServiceName]
		},
		remove: tracker.Sink.DeleteSlice,
		trim:   func(object any) { trimSlice(object.(*discoveryv1.EndpointSlice)) },
	}
}

func serviceCIDRs(client kubernetes.Interface) resource {
	return resource{
		name:     "servicecidrs",
		client:   client.NetworkingV1().RESTClient(),
		example:  &networkingv1.ServiceCIDR{},
		optional: true, // without them, packets to unused cluster IPs are not dropped
		set:      func(s tracker.Sink, object any) error { return s.SetServiceCIDR(object.(*networkingv1.ServiceCIDR)) },
		remove:   func(s tracker.Sink, _, name string) { s.DeleteServiceCIDR(name) },
		trim:     func(object any) { trimServiceCIDR(object.(*networkingv1.ServiceCIDR)) },
	}
}

func node(client kubernetes.Interface, name string) resource {
	return resource{
		name:    "nodes",
		client:  client.CoreV1().RESTClient(),
		fields:  fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
		example: &corev1.Node{},
		set:     func(s tracker.Sink, object any) error { return s.SetNode(object.(*corev1.Node)) },
		remove:  func(s tracker.Sink, _, name string) { s.DeleteNode(name) },
		trim:    func(object any) { trimNode(object.(*corev1.Node)) },
	}
}

// listWatch returns the requests for the resource. Lists come trimmed. Watch events do not: nothing
// holds them for longer than the sink takes to read them.
func (r *resource) listWatch() *cache.ListWatch {
	requests := cache.NewFilteredListWatchFromClient(r.client, r.name, metav1.NamespaceAll,
		func(options *metav1.ListOptions) {
			options.LabelSelector, options.FieldSelector = r.labels, r.fields
		})
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := requests.ListWithContext(ctx, options)
			if err != nil {
				return nil, err
			}
			if got, want := reflect.Indirect(reflect.ValueOf(list)).Type().Name(), reflect.TypeOf(r.example).Elem().Name()+
				"List"; got != want {
				return nil, fmt.Errorf("expected %s, got %s", want, got)
			}
			return list, meta.EachListItem(list, func(object runtime.Object) error {
				r.trim(object)
				return nil
			})
		},
		WatchFuncWithContext: requests.WatchWithContext,
	}
}

// load gives sink every object of one list, fetched in chunks.
func (r *resource) load(ctx context.Context, options *Options, sink tracker.Sink) error {
	chunks := pager.New(r.listWatch().ListWithContext)
	return chunks.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if err := r.set(sink, object); err != nil {
			options.Refused(err)
		}
		return nil
	})
}
