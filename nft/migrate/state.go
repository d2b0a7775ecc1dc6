package migrate

// A State says how far the takeover of a daemon is; for metrics.
type State string

// The states.
const (
	Waiting State = "waiting" // for a live kube-proxy to end
	Taking  State = "taking"  // committing, verifying, removing
	Taken   State = "done"    // nothing of kube-proxy's is left
	Stuck   State = "failed"  // a step failed; it is tried again
	Blind   State = "blind"   // done but for places that need a privilege to be looked at
)

// States lists all of them.
var States = [...]State{Waiting, Taking, Taken, Stuck, Blind}
