package config

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/informer"
)

// modeNFTables is kube-proxy's name of what kube-nft does.
const modeNFTables = "nftables"

// resolve checks the settings against each other and turns them into a Config.
func (r *reading) resolve() (*Config, error) {
	c := &Config{File: r.file}
	for _, step := range []func(*Config) error{
		r.resolveMode, r.resolveSource, r.resolveConnection, r.resolveServices, r.resolveNode, r.resolvePods, r.resolveNodePorts,
		r.resolveRuleset, r.resolvePeriods, r.resolveChoices, r.resolveServers, r.resolveConntrack,
		r.resolveProcess, r.resolveLog,
	} {
		if err := step(c); err != nil {
			return nil, err
		}
	}
	c.Notices, c.effective = r.notices, r.values
	return c, nil
}

func (r *reading) resolveMode(*Config) error {
	switch r.mode {
	case modeNFTables, "":
	case "iptables", "ipvs", "userspace", "kernelspace":
		if r.changed("proxy-mode") {
			r.notices = append(r.notices, "no effect in kube-nft: --proxy-mode "+r.mode)
		}
	default:
		return r.invalid("proxy-mode", r.mode, "expected nftables")
	}
	r.mode = modeNFTables
	return nil
}

// resolveSource decides between files and an API server: a flag wins over the file.
func (r *reading) resolveSource(c *Config) error {
	if r.manifests != "" && (r.kubeconfig != "" || r.master != "") {
		byFlag := r.changed("manifests")
		switch server := r.changed("kubeconfig") || r.changed("master"); {
		case byFlag == server:
			return r.invalid("manifests", r.manifests, "it replaces the API server, so it cannot be combined with a kubeconfig or a master")
		case byFlag:
			r.kubeconfig, r.master = "", ""
		default:
			r.manifests = ""
		}
	}
	c.Manifests = r.manifests
	return nil
}

func (r *reading) resolveConnection(c *Config) error {
	switch {
	case r.qps < 0:
		return r.invalid("kube-api-qps", fmt.Sprint(r.qps), "expected a number that is not negative")
	case r.burst < 0:
		return r.invalid("kube-api-burst", fmt.Sprint(r.burst), "expected a number that is not negative")
	}
	if r.qps == 0 {
		r.qps = defaultQPS
	}
	if r.burst == 0 {
		r.burst = defaultBurst
	}
	if r.contentType == "" {
		r.contentType = protobuf
	}
	c.Connection = informer.Connection{Kubeconfig: r.kubeconfig, Master: r.master, QPS: r.qps, Burst: int(r.burst), ContentType: r.contentType}
	return nil
}

func (r *reading) resolveServices(c *Config) error {
	if len(validation.IsValidLabelValue(r.proxyName)) > 0 {
		return r.invalid("service-proxy-name", r.proxyName, "expected the value of a label: at most 63 letters, digits, -, _ and ., with a letter or digit at both ends")
	}
	c.ServiceProxyName = r.proxyName
	for _, text := range r.serviceCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return r.invalid("service-cidr", text, "expected a CIDR such as 10.96.0.0/12")
		}
		c.ServiceCIDRs = append(c.ServiceCIDRs, prefix.Masked())
	}
	return nil
}

func (r *reading) resolveNode(c *Config) error {
	name := r.hostname
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return fmt.Errorf("name of this node: %w; pass --hostname-override NAME", err)
		}
	}
	if c.NodeName = strings.ToLower(strings.TrimSpace(name)); c.NodeName == "" {
		return r.invalid("hostname-override", fmt.Sprintf("%q", r.hostname), "expected the name of a node")
	}
	addr, err := netip.ParseAddr(r.bindAddress)
	if err != nil {
		return r.invalid("bind-address", r.bindAddress, "expected an IP address")
	}
	if !addr.IsUnspecified() {
		c.NodeAddresses = []netip.Addr{addr}
	}
	return nil
}

func (r *reading) resolvePods(c *Config) error {
	c.Pods = make(map[nft.Family]nft.PodMatch)
	switch r.detectLocalMode {
	case detectClusterCIDR:
		return r.resolveClusterCIDR(c)
	case detectNodeCIDR:
		c.PodsFromNode = true
		return nil
	case detectBridge:
		return r.resolveInterface(c, "pod-bridge-interface", "detectLocal.bridgeInterface", r.podBridge)
	case detectPrefix:
		return r.resolveInterface(c, "pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", r.podPrefix)
	}
	return r.invalid("detect-local-mode", r.detectLocalMode, "expected ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")
}

func (r *reading) resolveClusterCIDR(c *Config) error {
	if r.clusterCIDR == "" {
		return nil
	}
	for text := range strings.SplitSeq(r.clusterCIDR, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return r.invalid("cluster-cidr", r.clusterCIDR, "expected a CIDR such as 10.244.0.0/16, or one of each family with a comma")
		}
		family := nft.Family(tracker.FamilyOf(prefix.Addr()))
		if _, twice := c.Pods[family]; twice {
			return r.invalid("cluster-cidr", r.clusterCIDR, "expected no more than one CIDR of a family")
		}
		c.Pods[family] = nft.PodMatch{CIDR: prefix.Masked()}
	}
	return nil
}

// resolveInterface recognises pods by the interface that their packets arrive on. The
// kernel's names have at most 15 bytes (IFNAMSIZ in linux/if.h is 16 with the NUL).
func (r *reading) resolveInterface(c *Config, flag, field, name string) error {
	if name == "" {
		return r.invalid("detect-local-mode", r.detectLocalMode, "it needs --"+flag+" or, in a file, "+field)
	}
	if len(name) > 15 || strings.ContainsAny(name, " \t\n\"/*\\") {
		return r.invalid(flag, name, "expected the name of a network interface, at most 15 bytes")
	}
	for _, family := range nft.Families {
		c.Pods[family] = nft.PodMatch{Interface: name, Prefix: r.detectLocalMode == detectPrefix}
	}
	return nil
}

// resolveNodePorts: serving loopback addresses takes a sysctl with consequences for the
// whole node, so that listing them is not enough.
func (r *reading) resolveNodePorts(c *Config) (err error) {
	if len(r.nodePorts) == 0 {
		r.nodePorts = []string{"primary"}
	}
	if c.NodePorts, err = proxysync.ParseNodePortAddresses(r.nodePorts); err != nil {
		return &Error{Setting: r.name("nodeport-addresses"), Reason: err.Error()}
	}
	c.LocalhostNodePorts = r.localhostPorts
	if !r.localhostPorts && slices.ContainsFunc(r.nodePorts, isLoopback) {
		r.notices = append(r.notices, "no effect without --localhost-nodeports: the loopback addresses in "+r.name("nodeport-addresses"))
	}
	return nil
}

// isLoopback reports whether an entry of the node-port addresses is about loopback alone.
func isLoopback(entry string) bool {
	prefix, err := netip.ParsePrefix(entry)
	return entry == "localhost" || err == nil && prefix.Addr().IsLoopback() && (prefix.Addr().Is6() || prefix.Bits() >= 8)
}

func (r *reading) resolveRuleset(c *Config) error {
	switch {
	case r.masqueradeBit < 0 || r.masqueradeBit > 31:
		return r.invalid("masquerade-bit", fmt.Sprint(r.masqueradeBit), "expected a bit of the packet mark, 0 to 31")
	case r.affinitySize == 0:
		return r.invalid("affinity-size", "0", "expected at least 1 client to remember")
	}
	c.MasqueradeAll, c.MasqueradeBit = r.masqueradeAll, uint8(r.masqueradeBit)
	c.AffinitySize = r.affinitySize
	c.ConnectionCounters, c.EndpointCounters = r.counters || r.endpointCounters, r.endpointCounters
	return nil
}

func (r *reading) resolvePeriods(c *Config) error {
	switch {
	case r.minSyncPeriod < 0:
		return r.invalid("min-sync-period", r.minSyncPeriod.String(), "expected a duration that is not negative")
	case r.syncPeriod <= 0:
		return r.invalid("sync-period", r.syncPeriod.String(), "expected more than 0s")
	case r.minSyncPeriod > r.syncPeriod:
		return r.invalid("min-sync-period", r.minSyncPeriod.String(), fmt.Sprintf("expected no more than %s, the value of %s", r.syncPeriod, r.name("sync-period")))
	}
	c.MinSyncPeriod, c.SyncPeriod = r.minSyncPeriod, r.syncPeriod
	return nil
}

// resolveChoices: whoever names a proxy has another one beside it, which needs its rules.
func (r *reading) resolveChoices(c *Config) error {
	for _, choice := range []struct{ flag, value string }{{"takeover", r.takeover}, {"table-ownership", r.tableOwnership}} {
		if choice.value != auto && choice.value != never {
			return r.invalid(choice.flag, choice.value, "expected auto or never")
		}
	}
	if r.proxyName != "" && r.takeover == auto {
		if r.given("takeover") {
			return r.invalid("takeover", auto, fmt.Sprintf("expected never, as %s leaves the other Services to another proxy", r.name("service-proxy-name")))
		}
		r.takeover = never
	}
	c.Takeover, c.TableOwnership = r.takeover == auto, r.tableOwnership == auto
	return nil
}

func (r *reading) resolveConntrack(c *Config) error {
	for _, limit := range []struct {
		flag  string
		value int32
	}{{"conntrack-max-per-core", r.conntrackMaxPerCore}, {"conntrack-min", r.conntrackMin}} {
		if limit.value < 0 {
			return r.invalid(limit.flag, fmt.Sprint(limit.value), "expected a number that is not negative")
		}
	}
	for _, timeout := range []struct {
		flag  string
		value time.Duration
	}{
		{"conntrack-tcp-timeout-established", r.tcpEstablishedTimeout},
		{"conntrack-tcp-timeout-close-wait", r.tcpCloseWaitTimeout},
		{"conntrack-udp-timeout", r.udpTimeout},
		{"conntrack-udp-timeout-stream", r.udpStreamTimeout},
	} {
		if timeout.value < 0 {
			return r.invalid(timeout.flag, timeout.value.String(), "expected a duration that is not negative")
		}
	}
	c.Conntrack = conntrack.Settings{
		MaxPerCore:     r.conntrackMaxPerCore,
		Min:            r.conntrackMin,
		TCPEstablished: r.tcpEstablishedTimeout,
		TCPCloseWait:   r.tcpCloseWaitTimeout,
		UDP:            r.udpTimeout,
		UDPStream:      r.udpStreamTimeout,
		TCPBeLiberal:   r.tcpBeLiberal,
	}
	return nil
}

func (r *reading) resolveProcess(c *Config) error {
	if r.oomScoreAdj < -1000 || r.oomScoreAdj > 1000 {
		return r.invalid("oom-score-adj", fmt.Sprint(r.oomScoreAdj), "expected -1000 to 1000")
	}
	c.OOMScoreAdj = int(r.oomScoreAdj)
	return nil
}

// debugVerbosity is from where on kube-proxy logs what helps in finding faults.
const debugVerbosity = 4

// resolveLog combines our settings with kube-proxy's. Ours win, but not those of the file
// over flags.
func (r *reading) resolveLog(c *Config) (err error) {
	if r.verbosity >= debugVerbosity && r.outranks("v", "log-level") {
		r.logLevel = "debug"
	}
	if c.LogLevel, err = zapcore.ParseLevel(r.logLevel); err != nil || !slices.Contains([]string{"debug", "info", "warn", "error"}, r.logLevel) {
		return r.invalid("log-level", r.logLevel, "expected debug, info, warn or error")
	}
	switch r.loggingFormat {
	case "", "text", "json":
	default:
		return r.invalid("logging-format", r.loggingFormat, "expected text or json")
	}
	if r.loggingFormat != "" && r.outranks("logging-format", "log-format") {
		r.logFormat = map[string]string{"text": "console", "json": "json"}[r.loggingFormat]
	}
	if r.logFormat != "json" && r.logFormat != "console" {
		return r.invalid("log-format", r.logFormat, "expected json or console")
	}
	c.LogFormat = r.logFormat
	return nil
}

// outranks reports whether kube-proxy's setting counts, not our own.
func (r *reading) outranks(theirs, ours string) bool {
	return !r.given(ours) || r.changed(theirs) && !r.changed(ours)
}
