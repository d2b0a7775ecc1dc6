// Package informer feeds a tracker from a Kubernetes API server. Make a client with Connection.Client and a Source with
// New, and start its Run with the tracker; Synced says when it has read everything once. Load reads once and ends.
//
// It lists and watches Services, EndpointSlices, ServiceCIDRs and one Node with the reflectors of
// client-go: streaming lists where the server offers them, lists and watches otherwise, and relists
// after 410 Gone. A reflector is the lower half of a shared informer. The upper half, an indexed
// cache of whole objects with a queue to its handlers, is missing on purpose: the tracker keeps
// what it needs of each object, so a second copy would only cost memory and a hop between
// goroutines. This package keeps the name and resource version of each object.
//
// The tracker takes the objects of a streaming list one by one, while the next ones are decoded. A
// plain list is decoded as a whole: its objects are trimmed to the fields that the tracker reads, so
// that it is smaller while the tracker goes through it.
package informer
