// Package health says whether this node's proxy works: to the kubelet and to load balancers
// as /healthz, /livez and /readyz (Proxy), and to load balancers of one Service on its
// health-check node port (Services). Status codes, headers and bodies are those of
// kube-proxy.
package health
