package peer

import "time"

// A Status is what a daemon says of itself.
type Status struct {
	Synced bool `json:"synced"` // it has read all objects
	Ready  bool `json:"ready"`  // it has programmed them
	// WaitingFor is what the first commit waits for, if it waits.
	WaitingFor string `json:"waitingFor,omitempty"`

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

	// HeldBack says that the safety check keeps the daemon from removing Services, Held for which reason: the
	// texts by takeover, source or list.
	HeldBack bool              `json:"heldBack"`
	Held     map[string]string `json:"held,omitempty"`

	// What this node does not serve as it is asked for.
	Conflicts        int `json:"conflicts"`
	SkippedPorts     int `json:"skippedPorts"` // Service ports whose rules the kernel refuses
	UnmetAnnotations int `json:"unmetAnnotations"`
	UnservedServices int `json:"unservedServices"` // over the quota of their namespace
	WaitingServices  int `json:"waitingServices"`  // their namespace has used its share of the time
	UnservedChecks   int `json:"unservedHealthChecks"`
}

// The reasons in Status.Held.
const (
	HeldTakeover = "takeover" // frontends of kube-proxy's would vanish
	HeldSource   = "source"   // the source would empty our tables
	HeldList     = "list"     // a new list lacks nearly all objects that there were
)
