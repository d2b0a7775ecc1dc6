package informer_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/tracker/informer"
)

// A counter is a sink that keeps nothing.
type counter struct{}

func (counter) SetService(*corev1.Service) error               { return nil }
func (counter) DeleteService(string, string)                   {}
func (counter) SetSlice(*discoveryv1.EndpointSlice) error      { return nil }
func (counter) DeleteSlice(string, string)                     {}
func (counter) SetNode(*corev1.Node) error                     { return nil }
func (counter) DeleteNode(string)                              {}
func (counter) SetServiceCIDR(*networkingv1.ServiceCIDR) error { return nil }
func (counter) DeleteServiceCIDR(string)                       {}

// populate fills server with n Services of ten endpoints each.
func populate(server *apiserver.Server, n int) {
	for i := range n {
		name := fmt.Sprintf("s%d", i)
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name + "-1",
				Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP),
				Port: new(int32(8080))}},
		}
		for e := range 10 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 128+e, i/250, i%250)},
				Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
				NodeName:   new(fmt.Sprintf("node-%d", e)),
			})
		}
		server.Apply(service(name, fmt.Sprintf("10.96.%d.%d", i/250, i%250)), slice)
	}
}

// BenchmarkSync measures from New to Synced against a server on the loopback interface,
// with a sink that does nothing, in every encoding and way of listing.
func BenchmarkSync(b *testing.B) {
	for _, n := range []int{1000, 10000, 30000} {
		server := apiserver.New()
		url, err := server.Start("127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		populate(server, n)
		for _, mode := range []struct{ name, contentType string }{{"protobuf", ""}, {"json", "application/json"}} {
			b.Run(fmt.Sprintf("services=%d/%s", n, mode.name), func(b *testing.B) {
				b.ReportAllocs()
				connection := informer.Connection{Master: url, ContentType: mode.contentType, QPS: 1000, Burst: 1000}
				for b.Loop() {
					client, err := connection.Client()
					if err != nil {
						b.Fatal(err)
					}
					source := informer.New(client, informer.Options{NodeName: "one"})
					ctx, cancel := context.WithCancel(b.Context())
					var running sync.WaitGroup
					running.Go(func() { _ = source.Run(ctx, counter{}) })
					<-source.Synced()
					cancel()
					running.Wait()
				}
				runtime.GC()
			})
		}
		server.Close()
	}
}

// BenchmarkEvent measures from a change on the server until the sink had it, over HTTP,
// with 1,000 Services listed.
func BenchmarkEvent(b *testing.B) {
	server := apiserver.New()
	url, err := server.Start("127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	populate(server, 1000)
	connection := informer.Connection{Master: url, QPS: 1000, Burst: 1000}
	client, err := connection.Client()
	if err != nil {
		b.Fatal(err)
	}
	changed := make(chan struct{}, 10)
	source := informer.New(client, informer.Options{Changed: func() { changed <- struct{}{} }})
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = source.Run(ctx, counter{}) })
	defer running.Wait()
	defer cancel()
	<-source.Synced()
	for range 3 {
		<-changed // one for each list
	}
	for i := 0; b.Loop(); i++ {
		server.Apply(service("s1", fmt.Sprintf("10.96.0.%d", i%250)))
		<-changed
	}
}
