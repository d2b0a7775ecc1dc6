// Package metrics counts what the proxy does, for Prometheus.
//
// Names and labels that begin with kubeproxy_ are kube-proxy's, where they mean the same;
// those that begin with kube_nft_ are ours. Nothing is global: a Metrics has its registry.
package metrics
