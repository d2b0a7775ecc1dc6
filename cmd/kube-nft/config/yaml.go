package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// YAML returns the settings as a file that gives the same ones when it is read: a
// KubeProxyConfiguration without what has no effect, and a KubeNFTConfiguration.
func (c *Config) YAML() ([]byte, error) {
	proxy, err := withoutUseless(c.effective.proxyConfiguration())
	if err != nil {
		return nil, err
	}
	parts := make([][]byte, 0, 2)
	for _, part := range []any{proxy, c.effective.ownConfiguration()} {
		text, err := yaml.Marshal(part)
		if err != nil {
			return nil, fmt.Errorf("configuration as YAML: %w", err)
		}
		parts = append(parts, text)
	}
	return bytes.Join(parts, []byte("---\n")), nil
}

// withoutUseless leaves out sections that are not read, and the logging settings, for which
// ours stand.
func withoutUseless(p *proxyv1alpha1.KubeProxyConfiguration) (map[string]any, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("configuration as JSON: %w", err)
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("configuration as JSON: %w", err)
	}
	for _, name := range []string{"iptables", "ipvs", "winkernel", "portRange", "logging", "showHiddenMetricsForVersion"} {
		delete(tree, name)
	}
	delete(tree["clientConnection"].(map[string]any), "acceptContentTypes")
	return tree, nil
}

func (v *values) proxyConfiguration() *proxyv1alpha1.KubeProxyConfiguration {
	p := &proxyv1alpha1.KubeProxyConfiguration{
		TypeMeta:            metav1.TypeMeta{APIVersion: proxyVersion, Kind: proxyKind},
		HostnameOverride:    v.hostname,
		BindAddress:         v.bindAddress,
		HealthzBindAddress:  v.healthz,
		MetricsBindAddress:  v.metrics,
		BindAddressHardFail: v.hardFail,
		EnableProfiling:     v.profiling,
		Mode:                proxyv1alpha1.ProxyMode(v.mode),
		DetectLocalMode:     proxyv1alpha1.LocalMode(v.detectLocalMode),
		ClusterCIDR:         v.clusterCIDR,
		NodePortAddresses:   v.nodePorts,
		OOMScoreAdj:         &v.oomScoreAdj,
		ConfigSyncPeriod:    *duration(15 * time.Minute), // kube-proxy's default; there is no such setting here
	}
	p.ClientConnection.Kubeconfig = v.kubeconfig
	p.ClientConnection.ContentType = v.contentType
	p.ClientConnection.QPS, p.ClientConnection.Burst = v.qps, v.burst
	p.DetectLocal.BridgeInterface, p.DetectLocal.InterfaceNamePrefix = v.podBridge, v.podPrefix
	p.NFTables = proxyv1alpha1.KubeProxyNFTablesConfiguration{
		MasqueradeBit: &v.masqueradeBit,
		MasqueradeAll: v.masqueradeAll,
		SyncPeriod:    *duration(v.syncPeriod),
		MinSyncPeriod: *duration(v.minSyncPeriod),
	}
	p.Conntrack = proxyv1alpha1.KubeProxyConntrackConfiguration{
		MaxPerCore:            &v.conntrackMaxPerCore,
		Min:                   &v.conntrackMin,
		TCPEstablishedTimeout: duration(v.tcpEstablishedTimeout),
		TCPCloseWaitTimeout:   duration(v.tcpCloseWaitTimeout),
		TCPBeLiberal:          v.tcpBeLiberal,
		UDPTimeout:            *duration(v.udpTimeout),
		UDPStreamTimeout:      *duration(v.udpStreamTimeout),
	}
	return p
}

func (v *values) ownConfiguration() *KubeNFTConfiguration {
	o := &KubeNFTConfiguration{
		TypeMeta:                   metav1.TypeMeta{APIVersion: ownVersion, Kind: ownKind},
		Manifests:                  v.manifests,
		Master:                     v.master,
		ServiceCIDRs:               v.serviceCIDRs,
		ServiceProxyName:           v.proxyName,
		LocalhostNodePorts:         &v.localhostPorts,
		AffinitySize:               v.affinitySize,
		ConnectionCounters:         v.counters,
		EndpointConnectionCounters: v.endpointCounters,
		Takeover:                   v.takeover,
		TableOwnership:             v.tableOwnership,
		LogLevel:                   v.logLevel,
		LogFormat:                  v.logFormat,
		HealthzDisabled:            v.healthz == "",
		MetricsDisabled:            v.metrics == "",
	}
	if v.minSyncPeriod == 0 {
		o.MinSyncPeriod = duration(0)
	}
	return o
}

func duration(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
