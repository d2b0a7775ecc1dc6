// Package informer feeds a tracker from a Kubernetes API server.
//
// It lists and watches Services, EndpointSlices, ServiceCIDRs and one Node with the reflectors of
// client-go: streaming lists where the server offers them, lists and watches otherwise, and relists
// after 410 Gone. A reflector is the lower half of a shared informer. The upper half, an indexed
// cache of whole objects with a queue to its handlers, is missing on purpose: the tracker keeps
// what it needs of each object, so a second copy would only cost memory and a hop between
// goroutines. This package keeps the name and resource version of each object.
//
// Objects of a list are trimmed to the fields that the tracker reads as soon as they are decoded,
// so that a list under way is small as well.
package informer
