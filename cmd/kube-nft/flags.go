package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"

	"github.com/kube-nft/kube-nft/nft"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/informer"
)

// options are the settings of the command line: first as they were given, then, after
// complete, as the rest of the program wants them.
type options struct {
	manifests        string
	connection       informer.Connection
	hostnameOverride string
	bindAddress      string
	clusterCIDR      string
	detectLocalMode  string
	podBridge        string
	podPrefix        string
	serviceCIDRs     []string
	nodePortFlag     []string
	masqueradeAll    bool
	masqueradeBit    int
	minSyncPeriod    time.Duration
	affinitySize     uint32
	logLevel         string
	logFormat        string

	nodeName     string
	nodePorts    proxysync.NodePortAddresses
	pods         map[nft.Family]nft.PodMatch
	services     []netip.Prefix
	nodeIPs      []netip.Addr
	level        zapcore.Level
	fromNodeCIDR bool // pods are told by the Node's podCIDRs, which have to be waited for
}

// Values of --detect-local-mode, as kube-proxy spells them.
const (
	detectClusterCIDR = "ClusterCIDR"
	detectNodeCIDR    = "NodeCIDR"
	detectBridge      = "BridgeInterface"
	detectPrefix      = "InterfaceNamePrefix"
)

func (o *options) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.manifests, "manifests", "", "read Services, EndpointSlices, Nodes and ServiceCIDRs from this file or directory of YAML or JSON, and follow its changes, instead of an API server")
	f.StringVar(&o.connection.Kubeconfig, "kubeconfig", "", "kubeconfig of the API server; without it, the service account of the pod is used")
	f.StringVar(&o.connection.Master, "master", "", "URL of the API server, overriding the one in the kubeconfig")
	f.Float32Var(&o.connection.QPS, "kube-api-qps", 5, "requests per second to the API server")
	f.IntVar(&o.connection.Burst, "kube-api-burst", 10, "requests to the API server in one burst")
	f.StringVar(&o.connection.ContentType, "kube-api-content-type", "application/vnd.kubernetes.protobuf", "encoding of objects that is asked for first")
	f.StringVar(&o.hostnameOverride, "hostname-override", "", "name of this node; without it, the host's name")
	f.StringVar(&o.bindAddress, "bind-address", "0.0.0.0", "if a real address, the node's primary address instead of the one in its Node object")
	f.StringVar(&o.clusterCIDR, "cluster-cidr", "", "addresses of pods, one CIDR or one of each family with a comma; connections from elsewhere to cluster IPs are masqueraded")
	f.StringVar(&o.detectLocalMode, "detect-local-mode", detectClusterCIDR, "how pod traffic is recognised: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	f.StringVar(&o.podBridge, "pod-bridge-interface", "", "bridge that pods are connected to, for BridgeInterface")
	f.StringVar(&o.podPrefix, "pod-interface-name-prefix", "", "how the names of pods' interfaces begin, for InterfaceNamePrefix")
	f.StringSliceVar(&o.serviceCIDRs, "service-cidr", nil, "addresses of Services, besides those of ServiceCIDR objects; what no Service has there is dropped")
	f.StringSliceVar(&o.nodePortFlag, "nodeport-addresses", nil, "where node ports are served: CIDRs, primary (the Node's addresses), all; without it, primary")
	f.BoolVar(&o.masqueradeAll, "masquerade-all", false, "masquerade all connections to cluster IPs")
	f.IntVar(&o.masqueradeBit, "masquerade-bit", 14, "bit of the packet mark that requests masquerading, 0 to 31")
	f.DurationVar(&o.minSyncPeriod, "min-sync-period", 10*time.Millisecond, "least time between two commits; changes meanwhile go into one")
	f.Uint32Var(&o.affinitySize, "affinity-size", 65536, "clients that one session affinity map remembers at most")
	f.StringVar(&o.logLevel, "log-level", "info", "least severe log lines to write: debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "json", "log lines as json or as console text")
}

// complete checks the settings against each other and fills in what follows from them.
func (o *options) complete() error {
	if o.manifests != "" && (o.connection.Kubeconfig != "" || o.connection.Master != "") {
		return usagef("--manifests replaces the API server: it cannot be combined with --kubeconfig or --master")
	}
	for _, step := range []func() error{o.completeNode, o.completePods, o.completeAddresses, o.completeLog} {
		if err := step(); err != nil {
			return err
		}
	}
	switch {
	case o.masqueradeBit < 0 || o.masqueradeBit > 31:
		return usagef("--masquerade-bit %d: a packet mark has the bits 0 to 31", o.masqueradeBit)
	case o.minSyncPeriod < 0:
		return usagef("--min-sync-period %s: it cannot be negative", o.minSyncPeriod)
	case o.affinitySize == 0:
		return usagef("--affinity-size 0: at least 1 client has to be remembered")
	}
	return nil
}

func (o *options) completeNode() error {
	name := o.hostnameOverride
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return fmt.Errorf("name of this node: %w; pass --hostname-override NAME", err)
		}
	}
	if o.nodeName = strings.ToLower(strings.TrimSpace(name)); o.nodeName == "" {
		return usagef("--hostname-override %q: a node has a name", o.hostnameOverride)
	}
	addr, err := netip.ParseAddr(o.bindAddress)
	if err != nil {
		return usagef("--bind-address %q: not an IP address", o.bindAddress)
	}
	if !addr.IsUnspecified() {
		o.nodeIPs = []netip.Addr{addr}
	}
	return nil
}

func (o *options) completePods() error {
	o.pods = make(map[nft.Family]nft.PodMatch)
	switch o.detectLocalMode {
	case detectClusterCIDR:
		return o.completeClusterCIDR()
	case detectNodeCIDR:
		o.fromNodeCIDR = true
	case detectBridge:
		return o.detectInterface("--pod-bridge-interface", o.podBridge, false)
	case detectPrefix:
		return o.detectInterface("--pod-interface-name-prefix", o.podPrefix, true)
	default:
		return usagef("--detect-local-mode %q: expected ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix", o.detectLocalMode)
	}
	return nil
}

func (o *options) completeClusterCIDR() error {
	if o.clusterCIDR == "" {
		return nil
	}
	for _, text := range strings.Split(o.clusterCIDR, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return usagef("--cluster-cidr %q: not a CIDR such as 10.244.0.0/16", text)
		}
		family := nft.Family(tracker.FamilyOf(prefix.Addr()))
		if _, twice := o.pods[family]; twice {
			return usagef("--cluster-cidr %s: more than one CIDR of a family", o.clusterCIDR)
		}
		o.pods[family] = nft.PodMatch{CIDR: prefix.Masked()}
	}
	return nil
}

// detectInterface recognises pods by the interface that their packets arrive on. The
// kernel's names have at most 15 bytes (IFNAMSIZ in linux/if.h is 16 with the NUL).
func (o *options) detectInterface(flag, name string, prefix bool) error {
	if name == "" {
		return usagef("--detect-local-mode %s needs %s", o.detectLocalMode, flag)
	}
	if len(name) > 15 || strings.ContainsAny(name, " \t\n\"/*\\") {
		return usagef("%s %q: not the name of a network interface", flag, name)
	}
	for _, family := range nft.Families {
		o.pods[family] = nft.PodMatch{Interface: name, Prefix: prefix}
	}
	return nil
}

func (o *options) completeAddresses() (err error) {
	if o.nodePorts, err = proxysync.ParseNodePortAddresses(o.nodePortFlag); err != nil {
		return usagef("--nodeport-addresses: %w", err)
	}
	for _, text := range o.serviceCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return usagef("--service-cidr %q: not a CIDR such as 10.96.0.0/12", text)
		}
		o.services = append(o.services, prefix.Masked())
	}
	return nil
}

func (o *options) completeLog() (err error) {
	if o.level, err = zapcore.ParseLevel(o.logLevel); err != nil {
		return usagef("--log-level %q: expected debug, info, warn or error", o.logLevel)
	}
	if o.logFormat != "json" && o.logFormat != "console" {
		return usagef("--log-format %q: expected json or console", o.logFormat)
	}
	return nil
}

// trackerConfig and rulesetConfig hand the settings on.
func (o *options) trackerConfig() tracker.Config {
	return tracker.Config{NodeName: o.nodeName, NodeAddresses: o.nodeIPs, ServiceCIDRs: o.services, Clock: time.Now}
}

func (o *options) rulesetConfig(families []nft.Family) nft.Config {
	all := make(map[nft.Family]bool)
	for _, family := range tracker.Families {
		all[nft.Family(family)] = o.nodePorts.All(family)
	}
	return nft.Config{
		Families:      families,
		MasqueradeAll: o.masqueradeAll,
		MasqueradeBit: uint8(o.masqueradeBit),
		Pods:          o.pods,
		AllNodePorts:  all,
		AffinitySize:  o.affinitySize,
	}
}
