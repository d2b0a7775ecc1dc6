package config

import "time"

// values are all settings as they are written: by default, by flags or in a file. Those
// without a comment are those of kube-proxy's field of that name.
type values struct {
	manifests        string // path of objects to use instead of an API server's
	master           string // URL of the API server
	kubeconfig       string
	contentType      string
	qps              float32
	burst            int32
	hostname         string
	bindAddress      string
	proxyName        string // value of the label of the Services to serve
	detectLocalMode  string
	podBridge        string
	podPrefix        string
	clusterCIDR      string
	serviceCIDRs     []string // besides those of ServiceCIDR objects
	nodePorts        []string
	localhostPorts   bool // serve node ports at loopback addresses
	masqueradeAll    bool
	masqueradeBit    int32
	syncPeriod       time.Duration
	minSyncPeriod    time.Duration
	affinitySize     uint32 // clients in one session affinity map
	counters         bool   // count connections to frontends
	endpointCounters bool   // and to endpoints
	takeover         string // of what kube-proxy programmed: auto or never
	tableOwnership   string // of our tables by our socket: auto or never
	mode             string
	oomScoreAdj      int32

	healthz, metrics string // addresses; empty for no server
	hardFail         bool
	profiling        bool

	conntrackMaxPerCore   int32
	conntrackMin          int32
	tcpEstablishedTimeout time.Duration
	tcpCloseWaitTimeout   time.Duration
	tcpBeLiberal          bool
	udpTimeout            time.Duration
	udpStreamTimeout      time.Duration

	logLevel, logFormat string // ours
	verbosity           uint32 // kube-proxy's
	loggingFormat       string
}

// Values of detectLocalMode.
const (
	detectClusterCIDR = "ClusterCIDR"
	detectNodeCIDR    = "NodeCIDR"
	detectBridge      = "BridgeInterface"
	detectPrefix      = "InterfaceNamePrefix"
)

// Values of takeover and tableOwnership.
const (
	auto  = "auto"
	never = "never"
)

const (
	protobuf             = "application/vnd.kubernetes.protobuf"
	defaultQPS           = 5
	defaultBurst         = 10
	defaultHealthzPort   = 10256
	defaultMetricsPort   = 10249
	defaultMinSyncPeriod = time.Millisecond
)

// defaults are kube-proxy's, except for minSyncPeriod: its second is meant for syncs that
// cost as much as there are Services. With 10ms, changes at 100 a second were 6 ms late instead
// of 0.4, and the CPU time was the same; at 1,000 a second, with three times as many commits,
// it is half as much again. Tables are not owned by default because nft 1.0.6 lists
// an owned table, once kube-nft has ended, in a way that nft does not read.
func defaults() values {
	return values{
		contentType:     protobuf,
		qps:             defaultQPS,
		burst:           defaultBurst,
		bindAddress:     "0.0.0.0",
		detectLocalMode: detectClusterCIDR,
		masqueradeBit:   14,
		syncPeriod:      30 * time.Second,
		minSyncPeriod:   defaultMinSyncPeriod,
		affinitySize:    65536,
		takeover:        auto,
		tableOwnership:  never,
		oomScoreAdj:     -999,

		healthz: "0.0.0.0:10256",
		metrics: "127.0.0.1:10249",

		conntrackMaxPerCore:   32768,
		conntrackMin:          131072,
		tcpEstablishedTimeout: 24 * time.Hour,
		tcpCloseWaitTimeout:   time.Hour,

		logLevel:  "info",
		logFormat: "json",
	}
}
