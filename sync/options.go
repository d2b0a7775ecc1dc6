package sync

import (
	"context"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// Options are the settings of a Loop.
type Options struct {
	// MinInterval is the least time between the end of one sync and the start of the next;
	// what happens meanwhile goes into one batch. Zero is no pause at all.
	MinInterval time.Duration
	// Queue is notified when the source has something new. It may be nil.
	Queue *Queue
	// NodePorts says at which addresses node ports are served.
	NodePorts NodePortAddresses
	Log       *zap.Logger
	// AuditInterval is the time between two audits of the tables, give or take a tenth so that the nodes of a cluster do
	// not audit in step. Without Watch there are none.
	AuditInterval time.Duration
	// Foreign, if set, is asked for what goes into the same transaction as the first batch. With a
	// *SafetyError it keeps the batch back; any other error leaves the tables of others as they are.
	Foreign ForeignMessages
	// KnownClients, if set, is asked after Foreign for affinity entries of another proxy, which the first
	// batch makes ours.
	KnownClients func(context.Context) []services.KnownClient
	// Trust skips the safety check, which refuses a first commit that removes nearly all frontends.
	Trust bool
	// SafetyCheck, if set, is called on the loop's goroutine with each *SafetyError, and with nil after the
	// first sync that succeeds after one.
	SafetyCheck func(error)
	// View follows the commits, before Committed is called; nil: the loop makes its own.
	View *View
	// Lost, if set, is called on the loop's goroutine for each frontend that port has lost, before View says so. It must
	// not ask View.
	Lost func(at tracker.Frontend, port tracker.PortID)
	// Committed, if set, is called on the loop's goroutine after each successful sync.
	Committed func(Report)
	// CPUTime tells how long the calling thread has worked; nil: the time that passes.
	CPUTime func() time.Duration
	// Charge, if set, is called on the loop's goroutine for each namespace that a sync has changed, with the time that the
	// sync took for it.
	Charge func(namespace string, work time.Duration)
	// Hold, if set, is called after each sync with the namespaces that are to add nothing until a large change of them is
	// through: see services.Ruleset.Held.
	Hold func(namespaces []string)
	// Cleaned, if set, is called after each removal of stale connections, on a goroutine of its
	// own while Run runs.
	Cleaned func(FlowReport)
	// Skipped, if set, is called on the loop's goroutine when a Service is skipped because the kernel
	// refuses it, and with a nil error when the kernel accepts it. It is called again if the Service
	// changes and is refused again.
	Skipped func(namespace, service string, err error)
	// Failed, if set, is called on the loop's goroutine after each failed one.
	Failed func(error)
}

// A Report says what a sync did. An empty batch is not sent: Operations is 0 then.
type Report struct {
	Full         bool // the kernel's state was read first
	Operations   int
	Elements     int
	KnownClients int                 // that became entries, see Options.KnownClients
	Foreign      int                 // messages about tables of others, see Options.Foreign
	Compile      time.Duration       // from the delta to the batch
	Commit       time.Duration       // the kernel's part
	Taken        time.Time           // everything that the source had before is in the kernel now
	Delta        tracker.Delta       // what changed since the last successful sync
	NodePorts    []netip.Addr        // the addresses at which node ports are reached
	Conflicts    []services.Conflict // new ones that were logged
	Standing     int                 // conflicts that there are now, new ones or not
	Unmet        []services.Unmet    // annotations that this node has ceased to follow
	StandUnmet   int                 // those that it does not follow now
	SkippedPorts int                 // ports of Services that are skipped now, see Options.Skipped
	ReviewReason string              // why the tables were checked or repaired; empty for an ordinary sync
}
