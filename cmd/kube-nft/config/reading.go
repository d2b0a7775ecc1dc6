package config

import (
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
)

// A reading is one passage from what is written to what is meant.
type reading struct {
	values
	flags   *pflag.FlagSet
	file    string
	fields  map[string]string // by flag: the field of the file that gives the setting
	notices []string
}

// changed reports whether the flag was given.
func (r *reading) changed(flag string) bool { return r.flags.Changed(flag) }

// given reports whether the setting is more than a default.
func (r *reading) given(flag string) bool { return r.changed(flag) || r.fields[flag] != "" }

// name returns the setting as its owner knows it: the flag, or the field of the file.
func (r *reading) name(flag string) string {
	if field := r.fields[flag]; field != "" {
		return r.file + ": " + field
	}
	return "--" + flag
}

// invalid returns the error of a setting.
func (r *reading) invalid(flag, value, reason string) error {
	if value == "" {
		value = `""`
	}
	return &Error{Setting: r.name(flag), Value: value, Reason: reason}
}

// take gives a setting the value of a field, unless that is zero or the flag was given.
func take[T comparable](r *reading, flag, field string, to *T, from T) {
	var zero T
	if from != zero {
		takePointer(r, flag, field, to, &from)
	}
}

// takePointer is take for fields that can be zero.
func takePointer[T any](r *reading, flag, field string, to, from *T) {
	if from == nil || r.changed(flag) {
		return
	}
	*to, r.fields[flag] = *from, field
}

func takeList(r *reading, flag, field string, to *[]string, from []string) {
	if len(from) > 0 {
		takePointer(r, flag, field, to, &from)
	}
}

func takeDuration(r *reading, flag, field string, to *time.Duration, from *metav1.Duration) {
	if from != nil {
		takePointer(r, flag, field, to, &from.Duration)
	}
}

// read takes over what a file says.
func (r *reading) read(d *document) {
	r.readProxy(&d.proxy)
	r.readMasquerading(&d.proxy)
	r.readConntrack(&d.proxy.Conntrack)
	r.readOwn(&d.own)
	r.noticeLocalhost(d.proxy.IPTables.LocalhostNodePorts)
}

// noticeLocalhost says that node ports at localhost have to be asked for in kube-nft's own
// way: true is also what kube-proxy fills in, and nothing tells who chose it.
func (r *reading) noticeLocalhost(asked *bool) {
	if asked == nil || !*asked || r.localhostPorts {
		return
	}
	r.notices = append(r.notices, r.file+": iptables.localhostNodePorts true: node ports are not served at localhost without --localhost-nodeports")
}

func (r *reading) readProxy(p *proxyv1alpha1.KubeProxyConfiguration) {
	client := &p.ClientConnection
	take(r, "kubeconfig", "clientConnection.kubeconfig", &r.kubeconfig, client.Kubeconfig)
	take(r, "kube-api-content-type", "clientConnection.contentType", &r.contentType, client.ContentType)
	take(r, "kube-api-qps", "clientConnection.qps", &r.qps, client.QPS)
	take(r, "kube-api-burst", "clientConnection.burst", &r.burst, client.Burst)
	take(r, "hostname-override", "hostnameOverride", &r.hostname, p.HostnameOverride)
	take(r, "bind-address", "bindAddress", &r.bindAddress, p.BindAddress)
	take(r, "healthz-bind-address", "healthzBindAddress", &r.healthz, p.HealthzBindAddress)
	take(r, "metrics-bind-address", "metricsBindAddress", &r.metrics, p.MetricsBindAddress)
	take(r, "bind-address-hard-fail", "bindAddressHardFail", &r.hardFail, p.BindAddressHardFail)
	take(r, "profiling", "enableProfiling", &r.profiling, p.EnableProfiling)
	take(r, "proxy-mode", "mode", &r.mode, string(p.Mode))
	take(r, "detect-local-mode", "detectLocalMode", &r.detectLocalMode, string(p.DetectLocalMode))
	take(r, "pod-bridge-interface", "detectLocal.bridgeInterface", &r.podBridge, p.DetectLocal.BridgeInterface)
	take(r, "pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", &r.podPrefix, p.DetectLocal.InterfaceNamePrefix)
	take(r, "cluster-cidr", "clusterCIDR", &r.clusterCIDR, p.ClusterCIDR)
	takeList(r, "nodeport-addresses", "nodePortAddresses", &r.nodePorts, p.NodePortAddresses)
	takePointer(r, "oom-score-adj", "oomScoreAdj", &r.oomScoreAdj, p.OOMScoreAdj)
	take(r, "v", "logging.verbosity", &r.verbosity, uint32(p.Logging.Verbosity))
	take(r, "logging-format", "logging.format", &r.loggingFormat, p.Logging.Format)
}

// readMasquerading takes over the settings that each mode has for itself.
func (r *reading) readMasquerading(p *proxyv1alpha1.KubeProxyConfiguration) {
	if i := &p.IPTables; p.Mode != modeNFTables {
		take(r, "masquerade-all", "iptables.masqueradeAll", &r.masqueradeAll, i.MasqueradeAll)
		takePointer(r, "masquerade-bit", "iptables.masqueradeBit", &r.masqueradeBit, i.MasqueradeBit)
		take(r, "sync-period", "iptables.syncPeriod", &r.syncPeriod, i.SyncPeriod.Duration)
		take(r, "min-sync-period", "iptables.minSyncPeriod", &r.minSyncPeriod, i.MinSyncPeriod.Duration)
	}
	n := &p.NFTables
	take(r, "masquerade-all", "nftables.masqueradeAll", &r.masqueradeAll, n.MasqueradeAll)
	takePointer(r, "masquerade-bit", "nftables.masqueradeBit", &r.masqueradeBit, n.MasqueradeBit)
	take(r, "sync-period", "nftables.syncPeriod", &r.syncPeriod, n.SyncPeriod.Duration)
	take(r, "min-sync-period", "nftables.minSyncPeriod", &r.minSyncPeriod, n.MinSyncPeriod.Duration)
}

func (r *reading) readConntrack(c *proxyv1alpha1.KubeProxyConntrackConfiguration) {
	takePointer(r, "conntrack-max-per-core", "conntrack.maxPerCore", &r.conntrackMaxPerCore, c.MaxPerCore)
	takePointer(r, "conntrack-min", "conntrack.min", &r.conntrackMin, c.Min)
	takeDuration(r, "conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout", &r.tcpEstablishedTimeout, c.TCPEstablishedTimeout)
	takeDuration(r, "conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout", &r.tcpCloseWaitTimeout, c.TCPCloseWaitTimeout)
	take(r, "conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", &r.tcpBeLiberal, c.TCPBeLiberal)
	take(r, "conntrack-udp-timeout", "conntrack.udpTimeout", &r.udpTimeout, c.UDPTimeout.Duration)
	take(r, "conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout", &r.udpStreamTimeout, c.UDPStreamTimeout.Duration)
}

func (r *reading) readOwn(o *KubeNFTConfiguration) {
	take(r, "manifests", "manifests", &r.manifests, o.Manifests)
	take(r, "master", "master", &r.master, o.Master)
	takeList(r, "service-cidr", "serviceCIDRs", &r.serviceCIDRs, o.ServiceCIDRs)
	take(r, "service-proxy-name", "serviceProxyName", &r.proxyName, o.ServiceProxyName)
	takePointer(r, "localhost-nodeports", "localhostNodePorts", &r.localhostPorts, o.LocalhostNodePorts)
	takeDuration(r, "min-sync-period", "minSyncPeriod", &r.minSyncPeriod, o.MinSyncPeriod)
	take(r, "affinity-size", "affinitySize", &r.affinitySize, o.AffinitySize)
	take(r, "connection-counters", "connectionCounters", &r.counters, o.ConnectionCounters)
	take(r, "endpoint-connection-counters", "endpointConnectionCounters", &r.endpointCounters, o.EndpointConnectionCounters)
	take(r, "takeover", "takeover", &r.takeover, o.Takeover)
	take(r, "table-ownership", "tableOwnership", &r.tableOwnership, o.TableOwnership)
	take(r, "log-level", "logLevel", &r.logLevel, o.LogLevel)
	take(r, "log-format", "logFormat", &r.logFormat, o.LogFormat)
	if empty := ""; o.HealthzDisabled {
		takePointer(r, "healthz-bind-address", "healthzDisabled", &r.healthz, &empty)
	}
	if empty := ""; o.MetricsDisabled {
		takePointer(r, "metrics-bind-address", "metricsDisabled", &r.metrics, &empty)
	}
}
