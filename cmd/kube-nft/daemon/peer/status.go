package peer

import (
	"net/netip"
	"time"
)

// A Status is what a daemon says of itself.
type Status struct {
	Synced bool `json:"synced"` // it has read all objects
	Ready  bool `json:"ready"`  // it has programmed them
	// WaitingFor is what the first commit waits for, if it waits.
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

	// What this node does not serve as it is asked for.
	Conflicts        int `json:"conflicts"`
	SkippedPorts     int `json:"skippedPorts"` // Service ports whose rules the kernel refuses
	UnmetAnnotations int `json:"unmetAnnotations"`
	UnservedServices int `json:"unservedServices"` // over the quota of their namespace
	WaitingServices  int `json:"waitingServices"`  // their namespace has used its share of the time
	// Unserved are some of the UnservedServices.
	Unserved       []UnservedService `json:"unserved,omitempty"`
	UnservedChecks int               `json:"unservedHealthChecks"`
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
