// Package apiserver is a small Kubernetes API server for tests and benchmarks:
//
//	server := apiserver.New()
//	defer server.Close()
//	url, err := server.Start("127.0.0.1:0")
//	server.Apply(service) // creates it, or replaces it
//
// It speaks real HTTP and holds Services, Nodes, Pods, Events, DaemonSets, EndpointSlices and ServiceCIDRs: get,
// list with chunks, watch with resource versions, bookmarks and timeouts, streaming lists, compressed or not,
// label and field selectors, JSON and protobuf, 410 Gone. Events can be posted. Commands run in pods, over
// WebSockets and SPDY, and logs are read, as the test answers them (RunCommands, ServeLogs). Every
// request is recorded, and the faults of a bad day can be switched on: connections cut or
// refused, errors, history lost, events late, repeated or out of order, features missing,
// access forbidden.
//
// It checks no credentials, validates and defaults nothing, and forgets everything when it
// ends. Objects are encoded once per version and encoding, so that clusters of tens of
// thousands of Services are served at the speed of the network.
package apiserver
