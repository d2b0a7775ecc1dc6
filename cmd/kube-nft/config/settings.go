package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-nft/kube-nft/tracker"
)

// A setting is a flag and a field of a document. In a file the field has the setting's name; in
// memory it holds the value. Fields of KubeProxyConfiguration mean the same as in kube-proxy.
type setting struct {
	flag, field string
	weaker      string // field of the section iptables, which holds where field is left out
	stronger    string // field of KubeNFTConfiguration, which wins over field
	usage       string
	choice      string // all values that it takes, if these are words
	stage       string // alpha or beta; empty is stable
}

// settings are all settings.
var settings = []setting{
	{flag: "manifests", field: "manifests",
		usage: "read Services, EndpointSlices, Nodes and ServiceCIDRs from this YAML or JSON file or directory " +
			"instead of an API server, and follow its changes"},
	{flag: "kubeconfig", field: "clientConnection.kubeconfig",
		usage: "kubeconfig of the API server; default: the service account of the pod"},
	{flag: "master", field: "master", usage: "URL of the API server; overrides the one in the kubeconfig"},
	{flag: "kube-api-qps", field: "clientConnection.qps",
		usage: "requests per second to the API server; a negative number sets no limit"},
	{flag: "kube-api-burst", field: "clientConnection.burst", usage: "requests to the API server in one burst"},
	{flag: "kube-api-content-type", field: "clientConnection.contentType",
		usage: "preferred encoding of objects from the API server"},
	{flag: "hostname-override", field: "hostnameOverride", usage: "name of this node; default: the host's name"},
	{flag: "bind-address", field: "bindAddress",
		usage: "a specific address becomes the node's primary address, instead of the one in its Node object"},
	{flag: "cluster-cidr", field: "clusterCIDR",
		usage: "addresses of pods, one CIDR or one of each family with a comma; connections from other addresses to " +
			"cluster IPs are masqueraded"},
	{flag: "detect-local-mode", field: "detectLocalMode",
		choice: "ClusterCIDR NodeCIDR BridgeInterface InterfaceNamePrefix",
		usage:  "how to recognise pod traffic: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix"},
	{flag: "pod-bridge-interface", field: "detectLocal.bridgeInterface",
		usage: "bridge of the pods, for BridgeInterface"},
	{flag: "pod-interface-name-prefix", field: "detectLocal.interfaceNamePrefix",
		usage: "prefix of the names of pods' interfaces, for InterfaceNamePrefix"},
	{flag: "service-cidr", field: "serviceCIDRs",
		usage: "addresses of Services, in addition to ServiceCIDR objects; packets to addresses that no Service has " +
			"are dropped"},
	{flag: "service-proxy-name", field: "serviceProxyName",
		usage: "serve only Services whose label service.kubernetes.io/service-proxy-name has this value; default: " +
			"only Services without the label"},
	{flag: "nodeport-addresses", field: "nodePortAddresses",
		usage: "addresses that serve node ports: CIDRs, primary (the Node's addresses), localhost, all; default: " +
			"primary; at localhost kube-nft itself accepts connections, only TCP, without a sysctl"},
	{flag: "localhost-nodeports", field: "localhostNodePorts",
		usage: "serve node ports at 127.0.0.1 too, for all protocols (sets the sysctl " +
			"net.ipv4.conf.all.route_localnet and drops packets from other hosts), and TCP at [::1]"},
	{flag: "external-ips", field: "externalIPs",
		usage: "addresses that Services may list in spec.externalIPs: CIDRs, all or none; other addresses are not " +
			"served; default: all, as in kube-proxy 1.37; the feature gate " +
			"AllowServiceExternalIPs=false means none"},
	{flag: "masquerade-all", field: "nftables.masqueradeAll", weaker: "iptables.masqueradeAll",
		usage: "masquerade all connections to cluster IPs"},
	{flag: "masquerade-bit", field: "nftables.masqueradeBit", weaker: "iptables.masqueradeBit",
		usage: "bit of the packet mark that requests masquerading, 0 to 31"},
	{flag: "min-sync-period", field: "nftables.minSyncPeriod", weaker: "iptables.minSyncPeriod", stronger: "minSyncPeriod",
		usage: "minimum time between two commits; kube-nft commits the changes in between together; 0: no minimum"},
	{flag: "sync-period", field: "nftables.syncPeriod", weaker: "iptables.syncPeriod",
		usage: "how often kube-nft compares the kernel's rules with the wanted rules"},
	{flag: "affinity-size", field: "affinitySize",
		usage: "maximum number of session affinity entries of a namespace; namespaces are spread over 64 maps of this size"},
	{flag: "namespace-quota", field: "namespaceQuota",
		usage: "maximum number of elements that the Services of one namespace may use: 8 for each frontend, 1 for " +
			"each endpoint, each source range and each slot of kube-nft.io/lb-algorithm maglev (docs/limits.md has the rest); " +
			"the oldest Services are served first; use the same value on all nodes"},
	{flag: "connection-counters", field: "connectionCounters",
		usage: "count the connections to each frontend of a Service port in the kernel, for metrics"},
	{flag: "endpoint-connection-counters", field: "endpointConnectionCounters",
		usage: "count the connections to each endpoint as well: a time series for each endpoint of each frontend"},
	{flag: "flow-metrics", field: "flowMetrics", stage: alpha,
		usage: "count the bytes, packets and connections of each Service, and how long they last, for metrics (sets the " +
			"sysctls net.netfilter.nf_conntrack_acct and nf_conntrack_timestamp)"},
	{flag: "connections-of-departed", field: "connectionsOfDeparted", choice: "keep reset",
		usage: "what happens to TCP and SCTP connections to an endpoint that was removed from its Service: keep or " +
			"reset; kube-nft.io/connections-of-departed on a Service takes precedence"},
	{flag: "eject-endpoints", field: "ejectEndpoints", stage: alpha,
		usage: "send no new connections for a while to endpoints that do not answer TCP; kube-nft.io/eject on a " +
			"Service takes precedence"},
	{flag: "ping-vips", field: "pingVIPs",
		usage: "let the cluster, load-balancer and external IPs of Services with endpoints respond to ping; " +
			"kube-nft.io/ping on a Service takes precedence"},
	{flag: "source-ranges-for-node-ports", field: "sourceRangesForNodePorts",
		usage: "apply loadBalancerSourceRanges to node ports, too; kube-nft.io/source-ranges-for-node-ports on a " +
			"Service takes precedence"},
	{flag: "takeover", field: "takeover", choice: "auto force never",
		usage: "remove kube-proxy's rules on this node once kube-nft's rules are in force: auto, unless too many of " +
			"its frontends would not be served; force, without that check; or never, the default with --manifests " +
			"and --service-proxy-name"},
	{flag: "takeover-drain-timeout", field: "takeoverDrainTimeout",
		usage: "how long connections of kube-proxy's IPVS mode may keep its virtual servers and device after a takeover"},
	{flag: "keep-kube-proxy-table", field: "keepKubeProxyTable",
		usage: "keep a table ip kube-proxy with an empty chain: Calico with nftablesMode Auto looks for it, and changes " +
			"its dataplane when it goes"},
	{flag: "host-proc", field: "hostProc",
		usage: "path of a proc file system that shows the node's processes, to look for a running kube-proxy; in a " +
			"container without hostPID, the mount of the node's /proc"},
	{flag: "table-ownership", field: "tableOwnership", choice: "auto never",
		usage: "keep other programs from changing kube-nft's tables, if the kernel can: auto or never"},
	{flag: "mode", field: "mode", choice: modeNFTables + " " + modeShadow,
		usage: "nftables: serve; or shadow: compare with kube-proxy's rules and change nothing; kube-proxy's other modes " +
			"count as nftables"},
	{flag: "feature-gates", field: "featureGates",
		usage: "feature gates of Kubernetes, as NAME=true,NAME=false; the log names gates without effect"},
	{flag: "oom-score-adj", field: "oomScoreAdj", usage: "oom_score_adj of this process, -1000 to 1000"},

	{flag: "healthz-bind-address", field: "healthzBindAddress",
		usage: "address and port of /healthz, /livez and /readyz; [::] if --bind-address is IPv6; empty: no such " +
			"server"},
	{flag: "metrics-bind-address", field: "metricsBindAddress",
		usage: "address and port of /metrics; [::1] if --bind-address is IPv6; empty: no such server"},
	{flag: "bind-address-hard-fail", field: "bindAddressHardFail",
		usage: "exit if kube-nft cannot listen at --healthz-bind-address or --metrics-bind-address"},
	{flag: "profiling", field: "enableProfiling",
		usage: "serve /debug/pprof at the metrics address, and /debug/flags, where PUT changes the level of the log"},

	{flag: "conntrack-max-per-core", field: "conntrack.maxPerCore",
		usage: "maximum number of conntrack entries for each CPU; 0 leaves the limit unchanged, and " +
			"--conntrack-min without effect"},
	{flag: "conntrack-min", field: "conntrack.min", usage: "lower bound of the maximum number of conntrack entries"},
	{flag: "conntrack-tcp-timeout-established", field: "conntrack.tcpEstablishedTimeout",
		usage: "timeout of an idle TCP connection in conntrack; 0 does not change it"},
	{flag: "conntrack-tcp-timeout-close-wait", field: "conntrack.tcpCloseWaitTimeout",
		usage: "timeout of a TCP connection in CLOSE_WAIT in conntrack; 0 does not change it"},
	{flag: "conntrack-tcp-be-liberal", field: "conntrack.tcpBeLiberal", usage: "accept TCP packets outside the window"},
	{flag: "conntrack-udp-timeout", field: "conntrack.udpTimeout",
		usage: "timeout of a UDP flow without a reply in conntrack; 0 does not change it"},
	{flag: "conntrack-udp-timeout-stream", field: "conntrack.udpStreamTimeout",
		usage: "timeout of a UDP flow with replies in conntrack; 0 does not change it"},

	{flag: "log-level", field: "logLevel", choice: "debug info warn error",
		usage: "lowest level of log lines to write: debug, info, warn or error"},
	{flag: "log-format", field: "logFormat", choice: "auto json console",
		usage: "log lines as json, or as text for people (console); auto is text if stderr is a terminal"},
	{flag: "v", field: "logging.verbosity",
		usage: "log verbosity, as in kube-proxy: 0 to 3 mean --log-level info, 4 and more mean debug"},
	{flag: "logging-format", field: "logging.format", choice: "text json",
		usage: "kube-proxy's name for --log-format: text means console, json means json"},
}

// Values of detectLocalMode.
const (
	detectClusterCIDR = "ClusterCIDR"
	detectNodeCIDR    = "NodeCIDR"
	detectBridge      = "BridgeInterface"
	detectPrefix      = "InterfaceNamePrefix"
)

// Values of connectionsOfDeparted.
const (
	keep  = "keep"
	reset = "reset"
)

// Values of takeover, tableOwnership and logFormat.
const (
	auto  = "auto"
	never = "never"
	force = "force"
)

const (
	anyAddress   = "0.0.0.0" // of --bind-address: the Node object says which
	protobuf     = "application/vnd.kubernetes.protobuf"
	defaultQPS   = 5
	defaultBurst = 10
)

// defaults are kube-proxy's, except for minSyncPeriod: kube-proxy's second is meant for syncs whose
// cost grows with the number of Services. With 10ms, changes at 100 a second were 6 ms late instead
// of 0.4, for the same CPU time. At 1,000 a second 1ms makes three times as many commits as 10ms,
// for half as much CPU time again. Tables are not owned by default because nft 1.0.6 lists an owned
// table, once kube-nft has ended, in a form that nft does not read.
func defaults() *document {
	d := &document{own: KubeNFTConfiguration{
		TypeMeta:           metav1.TypeMeta{APIVersion: APIVersion, Kind: ownKind},
		LocalhostNodePorts: new(bool),
		ExternalIPs:        []string{defaultExternalIPs},
		AffinitySize:       131072,
		NamespaceQuota:     1000000,

		ConnectionsOfDeparted: keep,

		Takeover:       auto,
		TakeoverDrain:  metav1.Duration{Duration: 24 * time.Hour},
		HostProc:       "/proc",
		TableOwnership: never,
		LogLevel:       "info",
		LogFormat:      auto,
	}}
	p := &d.proxy
	p.TypeMeta = metav1.TypeMeta{APIVersion: proxyVersion, Kind: proxyKind}
	p.ClientConnection.ContentType, p.ClientConnection.QPS, p.ClientConnection.Burst = protobuf, defaultQPS, defaultBurst
	p.BindAddress, p.HealthzBindAddress, p.MetricsBindAddress = anyAddress, "0.0.0.0:10256", "127.0.0.1:10249"
	p.DetectLocalMode, p.Mode, p.OOMScoreAdj = detectClusterCIDR, modeNFTables, new(int32(-999))
	p.NFTables.MasqueradeBit = new(int32(14))
	p.NFTables.SyncPeriod.Duration, p.NFTables.MinSyncPeriod.Duration = 30*time.Second, time.Millisecond
	p.Conntrack.MaxPerCore, p.Conntrack.Min = new(int32(32768)), new(int32(131072))
	p.Conntrack.TCPEstablishedTimeout, p.Conntrack.TCPCloseWaitTimeout = &metav1.Duration{Duration: 24 * time.Hour},
		&metav1.Duration{Duration: time.Hour}
	p.ConfigSyncPeriod.Duration = 15 * time.Minute // kube-proxy's default; kube-nft has no such setting
	return d
}

// Choices lists the values of those flags that take one of a few words.
func Choices() map[string][]string {
	choices := make(map[string][]string)
	for _, s := range settings {
		if s.choice != "" {
			choices[s.flag] = strings.Fields(s.choice)
		}
	}
	return choices
}

// expected names the values of a flag that takes one of a few words.
func expected(flag string) string { return "expected " + tracker.Enumerate(Choices()[flag]) }

// addFlags declares the flags, which write into the document.
func (d *document) addFlags(f *pflag.FlagSet) {
	for _, s := range settings {
		v, usage := reflect.Indirect(d.at(s.field)), s.usage
		if s.stage != "" {
			usage += " (" + s.stage + ")"
		}
		switch {
		case v.Type() == reflect.TypeFor[metav1.Duration]():
			p := pointerTo[metav1.Duration](v)
			f.DurationVar(&p.Duration, s.flag, p.Duration, usage)
		case v.Kind() == reflect.String:
			p := pointerTo[string](v)
			f.StringVar(p, s.flag, *p, usage)
		case v.Kind() == reflect.Bool:
			p := pointerTo[bool](v)
			f.BoolVar(p, s.flag, *p, usage)
		case v.Kind() == reflect.Int32:
			p := pointerTo[int32](v)
			f.Int32Var(p, s.flag, *p, usage)
		case v.Kind() == reflect.Uint32:
			p := pointerTo[uint32](v)
			short := "" // -v is the only one
			if len(s.flag) == 1 {
				short = s.flag
			}
			f.Uint32VarP(p, s.flag, short, *p, usage)
		case v.Kind() == reflect.Float32:
			p := pointerTo[float32](v)
			f.Float32Var(p, s.flag, *p, usage)
		case v.Kind() == reflect.Map:
			f.Var(gateValues{pointerTo[map[string]bool](v)}, s.flag, usage)
		default:
			p := pointerTo[[]string](v)
			f.StringSliceVar(p, s.flag, *p, usage)
		}
	}
}

// pointerTo returns the address of a value of type T, or of a type that has T below it.
func pointerTo[T any](v reflect.Value) *T {
	return v.Addr().Convert(reflect.TypeFor[*T]()).Interface().(*T)
}

// JSON returns the settings as YAML does, each document under the group of its API.
func (c *Config) JSON() ([]byte, error) {
	parts, err := c.documents()
	if err != nil {
		return nil, err
	}
	all := make(map[string]any)
	for i, version := range []string{proxyVersion, APIVersion} {
		group, _, _ := strings.Cut(version, "/")
		all[group] = parts[i]
	}
	return json.Marshal(all)
}

// YAML returns the settings as a file that gives the same settings when read.
func (c *Config) YAML() ([]byte, error) {
	parts, err := c.documents()
	if err != nil {
		return nil, err
	}
	var texts [2][]byte
	for i, part := range parts {
		if texts[i], err = yaml.Marshal(part); err != nil {
			return nil, fmt.Errorf("configuration as YAML: %w", err)
		}
	}
	return bytes.Join(texts[:], []byte("---\n")), nil
}

// documents returns a KubeProxyConfiguration without the fields that have no effect, and a KubeNFTConfiguration.
func (c *Config) documents() (parts [2]any, err error) {
	own := c.effective.own
	own.HealthzDisabled, own.MetricsDisabled = c.effective.proxy.HealthzBindAddress == "",
		c.effective.proxy.MetricsBindAddress == ""
	// A second, in kube-proxy's section, would have a notice; none would be the default.
	if own.MinSyncPeriod = nil; slices.Contains([]time.Duration{0, proxyMinSyncPeriod},
		c.effective.proxy.NFTables.MinSyncPeriod.Duration) {
		own.MinSyncPeriod = new(c.effective.proxy.NFTables.MinSyncPeriod)
	}
	text, err := json.Marshal(c.effective.proxy)
	if err != nil {
		return parts, fmt.Errorf("configuration as JSON: %w", err)
	}
	var proxy map[string]any
	if err := json.Unmarshal(text, &proxy); err != nil {
		return parts, fmt.Errorf("configuration as JSON: %w", err)
	}
	// These are not read; our fields replace the logging settings.
	for _, name := range []string{"iptables", "ipvs", "winkernel", "portRange", "logging", "showHiddenMetricsForVersion"} {
		delete(proxy, name)
	}
	delete(proxy["clientConnection"].(map[string]any), "acceptContentTypes")
	return [2]any{proxy, own}, nil
}
