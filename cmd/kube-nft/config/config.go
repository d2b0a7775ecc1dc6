package config

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/informer"
)

// A Config is the settings as the program uses them, checked alone and against each other. Only
// Pods changes afterwards, if PodsFromNode.
type Config struct {
	// File is the path of the configuration file, empty without one.
	File string
	// Notices lists what was given but has no effect, or not the expected one, one line each.
	Notices []string
	// Overrides lists the flags that win over the file.
	Overrides []Override

	// Shadow requests the shadow mode: the daemon compares and changes nothing.
	Shadow bool

	// Manifests is the path of the objects to use; empty means the API server of Connection.
	Manifests  string
	Connection informer.Connection
	// ServiceProxyName is the label value of the Services to serve; empty means Services without the
	// label.
	ServiceProxyName string
	// ServiceCIDRs count in addition to ServiceCIDR objects.
	ServiceCIDRs []netip.Prefix

	// NodeName is in lower case, as the kubelet registers it, and not empty.
	NodeName string
	// NodeAddresses replace the Node object's addresses of their family.
	NodeAddresses []netip.Addr
	// Pods says by family how the rules recognise pod traffic. A missing family has no detection.
	Pods map[nft.Family]layout.PodMatch
	// PodsFromNode says that the Node's spec.podCIDRs will fill Pods.
	PodsFromNode bool
	NodePorts    proxysync.NodePortAddresses
	// LocalhostNodePorts requests node ports at loopback addresses.
	LocalhostNodePorts bool
	// LocalhostProxies are the families whose TCP node ports the daemon itself serves at the loopback
	// address.
	LocalhostProxies []tracker.Family

	// ExternalIPs are the addresses that Services may list in spec.externalIPs.
	ExternalIPs tracker.ExternalIPs

	MasqueradeAll  bool
	MasqueradeBit  uint8  // 0 to 31
	AffinitySize   uint32 // clients in one affinity map; positive
	NamespaceQuota uint32 // elements that the Services of a namespace may ask for; positive
	// MinSyncPeriod is the least time between two commits; 0: none. SyncPeriod is how often the
	// kernel is compared with the wanted tables; it is positive and not less than MinSyncPeriod.
	MinSyncPeriod, SyncPeriod time.Duration
	// ConnectionCounters requests counts of the connections to frontends, EndpointCounters to
	// endpoints as well.
	ConnectionCounters, EndpointCounters bool
	// FlowMetrics requests counts of what connections to Services move, and makes the kernel count.
	FlowMetrics bool
	// Takeover requests the removal of what kube-proxy programmed. It is false if another proxy goes
	// on, that is with a ServiceProxyName or in the shadow mode.
	Takeover bool
	// ForceTakeover requests it whatever frontends that costs.
	ForceTakeover bool
	// TakeoverDrain is how long connections of kube-proxy's IPVS mode may keep its device and virtual servers.
	TakeoverDrain time.Duration
	// KeepProxyTable keeps the table by which Calico chooses its dataplane.
	KeepProxyTable bool
	// HostProc is a proc file system that shows the node's processes.
	HostProc string
	// TableOwnership requests that others cannot change our tables, where the kernel can do that.
	TableOwnership bool

	// Healthz and Metrics are where the two servers listen; the zero value for no server.
	Healthz, Metrics netip.AddrPort
	// BindAddressHardFail makes a failure to listen fatal.
	BindAddressHardFail bool
	// Profiling requests /debug/pprof and /debug/flags at the Metrics address.
	Profiling bool
	// Gates say what kube-nft does of each known gate, whether a flag, the file or the default decides it.
	Gates map[string]bool

	Conntrack conntrack.Settings
	// Defaults are the settings of Services without annotations.
	Defaults tracker.Settings

	// OOMScoreAdj is for /proc/self/oom_score_adj, -1000 to 1000.
	OOMScoreAdj int

	// LogLevel can be changed while a logger of Log is in use.
	LogLevel  zap.AtomicLevel
	LogFormat string // json, console, or auto: console on a terminal

	effective document // for YAML
	watchList *bool    // whether objects may come as a streaming list; nil: client-go decides
}

// Tracker returns the tracker's part of the settings.
func (c *Config) Tracker() tracker.Config {
	return tracker.Config{
		NodeName:         c.NodeName,
		NodeAddresses:    c.NodeAddresses,
		ServiceProxyName: c.ServiceProxyName,
		ServiceCIDRs:     c.ServiceCIDRs,
		Defaults:         c.Defaults,
		ExternalIPs:      c.ExternalIPs,
		AwaitSlices:      awaitSlices,
		Quota:            int(c.NamespaceQuota),
		Clock:            time.Now,
	}
}

// awaitSlices is far longer than two watches that bring a Service and its first EndpointSlice are
// apart, and so short that users do not notice when connections to a new Service without endpoints are
// refused so much later.
const awaitSlices = 10 * time.Millisecond

// Ruleset returns the part of the settings on which the ruleset of these families depends.
func (c *Config) Ruleset(families []nft.Family) services.Config {
	all := make(map[nft.Family]bool)
	for _, family := range tracker.Families {
		all[family] = c.NodePorts.All(family)
	}
	return services.Config{
		Families:         families,
		MasqueradeAll:    c.MasqueradeAll,
		MasqueradeBit:    c.MasqueradeBit,
		Pods:             c.Pods,
		AllNodePorts:     all,
		Localhost:        c.LocalhostNodePorts,
		AffinitySize:     c.AffinitySize,
		Counters:         c.ConnectionCounters,
		EndpointCounters: c.EndpointCounters,
	}
}

// UsePodCIDRs recognises pods by the Node object's pod CIDRs; false if it has none.
func (c *Config) UsePodCIDRs(node *tracker.Node) bool {
	if node == nil || len(node.PodCIDRs) == 0 {
		return false
	}
	for _, prefix := range node.PodCIDRs {
		family := tracker.FamilyOf(prefix.Addr())
		if _, twice := c.Pods[family]; !twice {
			c.Pods[family] = layout.PodMatch{CIDR: prefix}
		}
	}
	return true
}

// WarnNode logs that there is no Node object of this name, and the consequences.
func (c *Config) WarnNode(log *zap.Logger) {
	log.Warn("no such Node: "+c.withoutNode(), zap.String("node", c.NodeName))
}

// WarnNodeGone logs that the Node object was deleted, and what holds until there is one again.
func (c *Config) WarnNodeGone(log *zap.Logger) {
	log.Warn("the Node was deleted: kube-nft uses its last addresses, zone and labels until a Node of this name "+
		"exists again", zap.String("node", c.NodeName))
}

// withoutNode says what a daemon cannot do while there has been no Node object.
func (c *Config) withoutNode() string {
	consequence := "/healthz tells load balancers that this node is not eligible"
	if c.Manifests != "" {
		consequence = "the zone of this node is not known"
	}
	if c.NodePorts.Primary() && len(c.NodeAddresses) == 0 {
		consequence = "node ports keep the primary addresses that the tables have already, and " + consequence
	}
	return fmt.Sprintf("%s; create a Node object of this name, or pass another --hostname-override", consequence)
}

// TerminalRows returns how many lines a writer shows that is a terminal; 0 if it is none.
func TerminalRows(w io.Writer) int {
	file, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Row)
}

// IsTerminal reports whether a writer is a terminal: a file that is one, or a writer that says so.
func IsTerminal(w io.Writer) bool {
	switch w := w.(type) {
	case interface{ IsTerminal() bool }:
		return w.IsTerminal()
	case *os.File:
		_, err := unix.IoctlGetTermios(int(w.Fd()), unix.TCGETS)
		return err == nil
	}
	return false
}

// Log returns a logger that writes to w, one line per entry.
func (c *Config) Log(w io.Writer) *zap.Logger {
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	config.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(config)
	if c.LogFormat == "console" || c.LogFormat == auto && IsTerminal(w) {
		encoder = zapcore.NewConsoleEncoder(config)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), c.LogLevel))
}

// LogNotices logs the given settings without effect, and the flags that win over the file.
func (c *Config) LogNotices(log *zap.Logger) {
	for _, o := range c.Overrides {
		log.Info("a flag overrides the file", zap.String("flag", o.Flag), zap.String("value", o.Value),
			zap.String("field", o.Field), zap.String("file_value", o.FileValue))
	}
	for _, notice := range c.Notices {
		log.Warn("a setting may not do what you expect", zap.String("notice", notice))
	}
}
