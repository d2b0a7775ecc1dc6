package tracker

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// BenchmarkManySlices changes 100 addresses of one slice of a Service, many of whose slices name the same endpoints.
func BenchmarkManySlices(b *testing.B) {
	for _, size := range []struct{ slices, endpoints, ports int }{
		{100, 100, 1}, {100, 1000, 1}, {100, 1000, 40}, {300, 1000, 1},
	} {
		b.Run(fmt.Sprintf("slices=%d/endpoints=%d/ports=%d", size.slices, size.endpoints, size.ports), func(b *testing.B) {
			tr := newTracker(Config{})
			service := newService()
			first := service.Spec.Ports[0]
			service.Spec.Ports = nil
			part := func(i, from int) *discoveryv1.EndpointSlice {
				s := newSlice(fmt.Sprint("part-", i))
				s.Ports = nil
				for n := range size.ports {
					name, number := fmt.Sprint("p", n), int32(8000+n)
					s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &number})
				}
				for n := range size.endpoints {
					if i < size.slices || n < 100 {
						s.Endpoints = append(s.Endpoints, newEndpoint(fmt.Sprintf("10.1.%d.%d", (n+from)>>8, (n+from)&255)))
					}
				}
				return s
			}
			for n := range size.ports {
				port := first
				port.Name, port.Port, port.NodePort = fmt.Sprint("p", n), int32(80+n), 0
				service.Spec.Ports = append(service.Spec.Ports, port)
			}
			service.Spec.Type = corev1.ServiceTypeClusterIP
			must(b, tr.SetService(service))
			for i := range size.slices {
				must(b, tr.SetSlice(part(i, 0)))
			}
			flip := []*discoveryv1.EndpointSlice{part(size.slices, 0), part(size.slices, 5000)}
			must(b, tr.SetSlice(flip[1]))
			for d := tr.Take(); !d.Due.IsZero(); d = tr.Take() {
			}
			i := 0
			for b.Loop() {
				must(b, tr.SetSlice(flip[i%2]))
				i++
				tr.Take()
			}
		})
	}
}
