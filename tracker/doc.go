// Package tracker turns Kubernetes objects into what they mean on this node.
//
// Services, EndpointSlices, ServiceCIDRs and this node's Node go in through Set and
// Delete methods; out of Take comes a Delta of immutable ServicePorts whose traffic
// policies, endpoint conditions and topology are resolved. The package imports API types
// only: it starts no goroutine, opens no connection and reads no clock but the one it is
// given.
package tracker
