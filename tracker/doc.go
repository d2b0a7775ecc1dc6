// Package tracker turns Kubernetes objects into what they mean on this node.
//
//	t := tracker.New(tracker.Config{NodeName: "node-1"})
//	t.SetService(service) // as objects come from the API server or from files
//	t.SetSlice(slice)
//	t.DeleteService("shop", "old")
//	delta := t.Take() // the Service ports that have changed since the last call
//
// Set and Delete methods take Services, EndpointSlices, ServiceCIDRs and this node's Node. Take returns a Delta of
// ServicePorts. Their endpoint lists follow from traffic policies, endpoint conditions and topology. A
// ServicePort does not change after that.
//
// The package starts no goroutine and opens no connection. It reads no clocks but those of Config. Packages
// tracker/informer and tracker/manifest call the Set and Delete methods.
package tracker
