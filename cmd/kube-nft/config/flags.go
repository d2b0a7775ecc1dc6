package config

import (
	"github.com/spf13/pflag"
)

// addFlags declares the flags that are kube-nft's own or mean in kube-nft what they mean in
// kube-proxy.
func (v *values) addFlags(f *pflag.FlagSet) {
	f.StringVar(&v.manifests, "manifests", v.manifests, "read Services, EndpointSlices, Nodes and ServiceCIDRs from this file or directory of YAML or JSON, and follow its changes, instead of an API server")
	f.StringVar(&v.kubeconfig, "kubeconfig", v.kubeconfig, "kubeconfig of the API server; without it, the service account of the pod is used")
	f.StringVar(&v.master, "master", v.master, "URL of the API server, overriding the one in the kubeconfig")
	f.Float32Var(&v.qps, "kube-api-qps", v.qps, "requests per second to the API server")
	f.Int32Var(&v.burst, "kube-api-burst", v.burst, "requests to the API server in one burst")
	f.StringVar(&v.contentType, "kube-api-content-type", v.contentType, "encoding of objects that is asked for first")
	f.StringVar(&v.hostname, "hostname-override", v.hostname, "name of this node; without it, the host's name")
	f.StringVar(&v.bindAddress, "bind-address", v.bindAddress, "if a real address, the node's primary address instead of the one in its Node object")
	f.StringVar(&v.clusterCIDR, "cluster-cidr", v.clusterCIDR, "addresses of pods, one CIDR or one of each family with a comma; connections from elsewhere to cluster IPs are masqueraded")
	f.StringVar(&v.detectLocalMode, "detect-local-mode", v.detectLocalMode, "how pod traffic is recognised: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	f.StringVar(&v.podBridge, "pod-bridge-interface", v.podBridge, "bridge that pods are connected to, for BridgeInterface")
	f.StringVar(&v.podPrefix, "pod-interface-name-prefix", v.podPrefix, "how the names of pods' interfaces begin, for InterfaceNamePrefix")
	f.StringSliceVar(&v.serviceCIDRs, "service-cidr", v.serviceCIDRs, "addresses of Services, besides those of ServiceCIDR objects; what no Service has there is dropped")
	f.StringVar(&v.proxyName, "service-proxy-name", v.proxyName, "serve only Services whose label service.kubernetes.io/service-proxy-name has this value; without it, only those without the label")
	f.StringSliceVar(&v.nodePorts, "nodeport-addresses", v.nodePorts, "where node ports are served: CIDRs, primary (the Node's addresses), localhost, all; without it, primary")
	f.BoolVar(&v.masqueradeAll, "masquerade-all", v.masqueradeAll, "masquerade all connections to cluster IPs")
	f.Int32Var(&v.masqueradeBit, "masquerade-bit", v.masqueradeBit, "bit of the packet mark that requests masquerading, 0 to 31")
	f.DurationVar(&v.minSyncPeriod, "min-sync-period", v.minSyncPeriod, "least time between two commits; changes meanwhile go into one. Commits that take long are further apart when there are many, by up to 20ms; 0 is no pause at all")
	f.Uint32Var(&v.affinitySize, "affinity-size", v.affinitySize, "clients that one session affinity map remembers at most")
	f.StringVar(&v.logLevel, "log-level", v.logLevel, "least severe log lines to write: debug, info, warn or error")
	f.StringVar(&v.logFormat, "log-format", v.logFormat, "log lines as json or as console text")
	f.Uint32VarP(&v.verbosity, "v", "v", v.verbosity, "log verbosity in kube-proxy's numbers: 4 and more stand for --log-level debug")
	f.StringVar(&v.loggingFormat, "logging-format", v.loggingFormat, "log format in kube-proxy's words: text stands for --log-format console, json for json")
}

// The functions below declare the flags of one feature each. Their settings have a place in
// the file, and their defaults, in any case.

// AddHealthFlags declares the addresses of the health and metrics servers.
func (r *Reader) AddHealthFlags() {
	v := &r.given
	r.flags.StringVar(&v.healthz, "healthz-bind-address", v.healthz, "address and port of /healthz, /livez and /readyz; [::] if --bind-address is IPv6; empty for no such server")
	r.flags.StringVar(&v.metrics, "metrics-bind-address", v.metrics, "address and port of /metrics; [::1] if --bind-address is IPv6; empty for no such server")
	r.flags.BoolVar(&v.hardFail, "bind-address-hard-fail", v.hardFail, "fail if one of these addresses cannot be listened at")
	r.flags.BoolVar(&v.profiling, "profiling", v.profiling, "serve /debug/pprof at the metrics address")
	r.addAlias("healthz-port", "healthz-bind-address", portAddress)
	r.addAlias("metrics-port", "metrics-bind-address", portAddress)
}

// AddConntrackFlags declares the connection tracking sysctls.
func (r *Reader) AddConntrackFlags() {
	v := &r.given
	r.flags.Int32Var(&v.conntrackMaxPerCore, "conntrack-max-per-core", v.conntrackMaxPerCore, "connections that can be tracked, for each CPU; 0 leaves the limit as it is, whatever --conntrack-min")
	r.flags.Int32Var(&v.conntrackMin, "conntrack-min", v.conntrackMin, "connections that can be tracked at least")
	r.flags.DurationVar(&v.tcpEstablishedTimeout, "conntrack-tcp-timeout-established", v.tcpEstablishedTimeout, "how long an idle TCP connection is tracked; 0 leaves it as it is")
	r.flags.DurationVar(&v.tcpCloseWaitTimeout, "conntrack-tcp-timeout-close-wait", v.tcpCloseWaitTimeout, "how long a TCP connection in CLOSE_WAIT is tracked; 0 leaves it as it is")
	r.flags.BoolVar(&v.tcpBeLiberal, "conntrack-tcp-be-liberal", v.tcpBeLiberal, "accept TCP packets outside the window")
	r.flags.DurationVar(&v.udpTimeout, "conntrack-udp-timeout", v.udpTimeout, "how long a UDP flow without a reply is tracked; 0 leaves it as it is")
	r.flags.DurationVar(&v.udpStreamTimeout, "conntrack-udp-timeout-stream", v.udpStreamTimeout, "how long a UDP flow with replies is tracked; 0 leaves it as it is")
}

// AddOOMFlag declares the score that the kernel's out-of-memory killer sees.
func (r *Reader) AddOOMFlag() {
	r.flags.Int32Var(&r.given.oomScoreAdj, "oom-score-adj", r.given.oomScoreAdj, "oom_score_adj of this process, -1000 to 1000")
}

// AddSyncPeriodFlag declares the interval at which the kernel is read back.
func (r *Reader) AddSyncPeriodFlag() {
	r.flags.DurationVar(&r.given.syncPeriod, "sync-period", r.given.syncPeriod, "how often the kernel is compared with what it should hold")
	r.addAlias("iptables-sync-period", "sync-period", nil)
}

// AddLocalhostFlag declares node ports at loopback addresses.
func (r *Reader) AddLocalhostFlag() {
	r.flags.BoolVar(&r.given.localhostPorts, "localhost-nodeports", r.given.localhostPorts, "serve node ports at 127.0.0.1 too (sets the sysctl net.ipv4.conf.all.route_localnet and keeps other hosts out), and those of TCP at [::1]")
}

// AddCountersFlag declares counters of connections.
func (r *Reader) AddCountersFlag() {
	v := &r.given
	r.flags.BoolVar(&v.counters, "connection-counters", v.counters, "count the connections to each frontend of a Service port in the kernel, for metrics")
	r.flags.BoolVar(&v.endpointCounters, "endpoint-connection-counters", v.endpointCounters, "count those that each endpoint is chosen for as well: a series for each endpoint of each frontend")
}

// AddTakeoverFlag declares what becomes of kube-proxy's leftovers.
func (r *Reader) AddTakeoverFlag() {
	r.flags.StringVar(&r.given.takeover, "takeover", r.given.takeover, "remove what kube-proxy programmed on this node once our rules are in force: auto or never; with --service-proxy-name never")
}

// AddOwnershipFlag declares whether our tables belong to our socket alone.
func (r *Reader) AddOwnershipFlag() {
	r.flags.StringVar(&r.given.tableOwnership, "table-ownership", r.given.tableOwnership, "keep others from changing our tables, where the kernel can: auto or never")
}
