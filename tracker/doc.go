// Package tracker turns Kubernetes objects into what they mean on this node.
//
//	t := tracker.New(tracker.Config{NodeName: "node-1"})
//	t.SetService(service) // as objects come from the API server or from files
//	t.SetSlice(slice)
//	t.DeleteService("shop", "old")
//	delta := t.Take() // the Service ports that have changed since the last call
//
// A Service does not say which endpoints a node may use for it: that depends on its EndpointSlices, on traffic
// policies, on the conditions of endpoints, and on the node's name and zone. Set and Delete methods take these
// objects, and ServiceCIDRs. Take returns a Delta of ServicePorts with their endpoint lists. A ServicePort does not
// change after that.
//
// The package starts no goroutine and opens no connection. It reads no clocks but those of Config. Packages
// tracker/informer and tracker/manifest call the Set and Delete methods.
package tracker
