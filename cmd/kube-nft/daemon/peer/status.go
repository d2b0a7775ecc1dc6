package peer

import (
	"net/netip"
	"time"

	"github.com/kube-nft/kube-nft/nft/migrate"
	"github.com/kube-nft/kube-nft/sync/flows"
)

// A Status is what a daemon says of itself.
type Status struct {
	Synced bool `json:"synced"` // it has read all objects
	Ready  bool `json:"ready"`  // it has programmed them, and answers health checks where it can
	// WaitingFor is what the first commit waits for, if it waits, or what it waits for after that until it is ready.
	WaitingFor string `json:"waitingFor,omitempty"`
	// AwaitsProxy says that it waits for a running kube-proxy to end, and for nothing else.
	AwaitsProxy bool `json:"awaitsKubeProxy,omitempty"`
	// Draining says which connections of kube-proxy's keep a part of its state, after the rest was removed.
	Draining string `json:"draining,omitempty"`

	Healthy      bool `json:"healthy"`      // changes reach the kernel in time
	NodeEligible bool `json:"nodeEligible"` // load balancers may send traffic here
	NodeMissing  bool `json:"nodeMissing"`  // there is no Node object of this node's name

	// Counts since the daemon's start.
	LastSync      time.Time `json:"lastSync,omitzero"`
	Syncs         int       `json:"syncs"`
	SyncFailures  int       `json:"syncFailures"`
	Reviews       int       `json:"reviews"` // syncs that looked at the tables because of other programs' commits
	Repairs       int       `json:"repairs"` // reviews that had to write
	RefusedFields int       `json:"refusedFields"`

	// SafetyCheck has the texts of the safety check, by reason, while it keeps the daemon from removing Services.
	SafetyCheck map[string]string `json:"safetyCheck,omitempty"`

	// What objects ask for and this node does not serve now.
	Conflicts        int `json:"conflicts"`
	SkippedPorts     int `json:"skippedPorts"` // Service ports whose rules the kernel refuses
	UnmetAnnotations int `json:"unmetAnnotations"`
	UnservedServices int `json:"unservedServices"` // over the quota of their namespace
	WaitingServices  int `json:"waitingServices"`  // their namespace has used its share of the time, or is in a large change
	// Unserved are some of the UnservedServices.
	Unserved       []UnservedService `json:"unserved,omitempty"`
	UnservedChecks int               `json:"unservedHealthChecks"`

	// EjectedEndpoints is how many endpoints get no new connections because they do not answer, or are being tried
	// again; Ejected are some of them.
	EjectedEndpoints int               `json:"ejectedEndpoints"`
	Ejected          []EjectedEndpoint `json:"ejected,omitempty"`

	FlowMetrics *flows.State `json:"flowMetrics,omitempty"` // nil without --flow-metrics

	// Shadow is what the shadow mode found; missing in other modes, where the fields above are about the kernel.
	Shadow *Shadow `json:"shadow,omitempty"`
}

// A Shadow is what the shadow mode found at its last comparison.
type Shadow struct {
	Compared  time.Time `json:"lastComparison,omitzero"`
	Seconds   float64   `json:"comparisonSeconds"` // how long it took, with the reading of kube-proxy's rules
	Frontends int       `json:"frontends"`         // that kube-proxy served
	// Problem is why there has been no comparison since.
	Problem string `json:"problem,omitempty"`

	Differences int                  `json:"differences"` // that last
	Counts      map[migrate.Kind]int `json:"differencesByKind"`
	First       []migrate.Difference `json:"firstDifferences,omitempty"`
	// Passing are differences that may pass with kube-proxy's next sync.
	Passing int `json:"passingDifferences"`
}

// An EjectedEndpoint is one that gets no new connections because it does not answer.
type EjectedEndpoint struct {
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	Port      string         `json:"port,omitempty"`
	Endpoint  netip.AddrPort `json:"endpoint"`
	Since     time.Time      `json:"since"`
	Until     time.Time      `json:"until,omitzero"` // when it will be tried again; missing while it is tried
	Times     int            `json:"times"`          // in a row
}

// An UnservedService is one that the quota of its namespace leaves out.
type UnservedService struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Reason    string       `json:"reason"`
	Addresses []netip.Addr `json:"addresses"`
	NodePorts []uint16     `json:"nodePorts,omitempty"`
}

// The reasons in Status.SafetyCheck.
const (
	SafetyTakeover = "takeover" // frontends of kube-proxy's would vanish
	SafetySource   = "source"   // the source would empty our tables
	SafetyList     = "list"     // a new list lacks nearly all objects that there were
)
