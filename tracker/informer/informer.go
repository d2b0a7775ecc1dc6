package informer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/kube-nft/kube-nft/tracker"
)

// Options say what a Source reads and which functions it calls. Each function may be nil. It is
// called from several goroutines and must not block.
type Options struct {
	// NodeName is the name of the Node to watch; empty for none.
	NodeName string
	// ProxyName is the value of the label service.kubernetes.io/service-proxy-name of the Services
	// to watch; empty for Services without the label.
	ProxyName string
	// Changed is called after the sink has received something: once per watch event, once per list.
	Changed func()
	// Refused gets the errors of the sink.
	Refused func(error)
	// Reached reports on requests for a resource (its plural name). It is called with an error when
	// they begin to fail or fail for another reason, and with nil when they succeed again. Failed
	// requests are retried.
	Reached func(resource string, err error)
	// KeepMissing is how long objects stay that a new list lacks, if it lacks nearly all of many; see
	// the type missing. With zero, every list is followed at once.
	KeepMissing time.Duration
	// Missing is called again and again while such objects of a resource stay, and with nil when none does any more.
	Missing func(resource string, err error)
}

// orNothing returns o with empty functions in place of nil ones.
func (o Options) orNothing() Options {
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Refused == nil {
		o.Refused = func(error) {}
	}
	if o.Reached == nil {
		o.Reached = func(string, error) {}
	}
	if o.Missing == nil {
		o.Missing = func(string, error) {}
	}
	return o
}

// A Source keeps a sink equal to the content of an API server.
type Source struct {
	client  kubernetes.Interface
	options Options

	synced   chan struct{}
	unlisted atomic.Int32 // resources that Synced still waits for
}

// New returns a Source that reads from client. Nothing is requested before Run.
func New(client kubernetes.Interface, options Options) *Source {
	return &Source{client: client, options: options.orNothing(), synced: make(chan struct{})}
}

// Synced returns a channel that is closed once the sink has received all Services, EndpointSlices
// and ServiceCIDRs, and the Node if it exists. Synced does not wait for ServiceCIDRs if the API
// server does not serve them or forbids reading them.
func (s *Source) Synced() <-chan struct{} {
	return s.synced
}

// Run feeds sink until ctx ends. It returns nil when nothing is under way any more. It may be
// called once.
func (s *Source) Run(ctx context.Context, sink tracker.Sink) error {
	// Reflectors report their troubles in their own words, repeatedly; Reached reports each once.
	ctx = klog.NewContext(ctx, logr.Discard())
	all := resources(s.client, s.options)
	s.unlisted.Store(int32(len(all)))
	var running sync.WaitGroup
	for _, resource := range all {
		store := newStore(resource, sink, &s.options, sync.OnceFunc(func() { // one less to wait for
			if s.unlisted.Add(-1) == 0 {
				close(s.synced)
			}
		}))
		running.Go(func() { store.reflector().RunWithContext(ctx) })
	}
	running.Wait()
	return nil
}

// Load gives sink the present content of the API server and returns. It leaves out ServiceCIDRs
// that cannot be read, and calls Reached with the reason.
func Load(ctx context.Context, client kubernetes.Interface, options Options, sink tracker.Sink) error {
	options = options.orNothing()
	for _, resource := range resources(client, options) {
		err := resource.load(ctx, &options, sink)
		if err == nil {
			continue
		}
		err = explain(resource.name, err)
		if !resource.optional || !isUnavailable(err) {
			return err
		}
		options.Reached(resource.name, err)
	}
	return nil
}
