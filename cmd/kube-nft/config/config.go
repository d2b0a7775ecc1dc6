package config

import (
	"net/netip"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker/informer"
)

// A Config is the settings as the program uses them. They were checked, also against each
// other. Only Pods is written to afterwards, if PodsFromNode.
type Config struct {
	// File is the path of the configuration file, empty without one.
	File string
	// Notices say what was given but has no effect, one line each.
	Notices []string

	// Manifests is the path of the objects to use; empty: those of the API server that
	// Connection leads to.
	Manifests  string
	Connection informer.Connection
	// ServiceProxyName is the label value of the Services to serve; empty: those without.
	ServiceProxyName string
	// ServiceCIDRs hold besides those of ServiceCIDR objects.
	ServiceCIDRs []netip.Prefix

	// NodeName is in lower case, as the kubelet registers it, and not empty.
	NodeName string
	// NodeAddresses take the place of the Node object's addresses of their family.
	NodeAddresses []netip.Addr
	// Pods tell pod traffic, by family. A family that is missing has no detection.
	Pods map[nft.Family]nft.PodMatch
	// PodsFromNode says that Pods has to be filled from the Node's spec.podCIDRs.
	PodsFromNode bool
	NodePorts    proxysync.NodePortAddresses
	// LocalhostNodePorts asks for node ports at loopback addresses.
	LocalhostNodePorts bool

	MasqueradeAll bool
	MasqueradeBit uint8  // 0 to 31
	AffinitySize  uint32 // clients in one affinity map; positive
	// MinSyncPeriod is the least time between two commits; 0: none. SyncPeriod, which is
	// positive and not less, is how often the kernel is compared with what it should hold.
	MinSyncPeriod, SyncPeriod time.Duration
	// ConnectionCounters asks to count the connections to frontends, EndpointCounters those to
	// endpoints as well.
	ConnectionCounters, EndpointCounters bool
	// Takeover asks to remove what kube-proxy programmed. It is false if another proxy is
	// to go on, that is with a ServiceProxyName.
	Takeover bool
	// TableOwnership asks to keep others from changing our tables where the kernel can.
	TableOwnership bool

	// Healthz and Metrics are where the two servers listen; the zero value for no server.
	Healthz, Metrics netip.AddrPort
	// BindAddressHardFail makes it fatal if one of them cannot.
	BindAddressHardFail bool
	// Profiling asks for /debug/pprof at the Metrics address.
	Profiling bool

	Conntrack conntrack.Settings
	// OOMScoreAdj is for /proc/self/oom_score_adj, -1000 to 1000.
	OOMScoreAdj int

	LogLevel  zapcore.Level
	LogFormat string // json or console

	effective values // for YAML
}
