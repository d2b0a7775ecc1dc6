package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-nft/kube-nft/nft/words"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/informer"
	"github.com/kube-nft/kube-nft/tracker/manifest"
)

// A Feed runs a source of objects, an API server or files, into a tracker.
type Feed struct {
	Run    func(context.Context) error
	Synced <-chan struct{} // closed when the tracker has all objects

	mu       sync.Mutex
	failures map[string]error // of requests to the API server, by resource
}

// reached records that requests for a resource fail, or with nil that they succeed again.
func (f *Feed) reached(resource string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if delete(f.failures, resource); err != nil {
		f.failures[resource] = err
	}
}

// Failure returns why a request to the API server fails; nil if none does.
func (f *Feed) Failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, resource := range slices.Sorted(maps.Keys(f.failures)) {
		return f.failures[resource]
	}
	return nil
}

// NewFeed connects the source of the settings with a tracker. It calls changed when there is
// something new, refused with each invalid field, and missing with what stays although a new
// list of a resource lacks it. With a nil missing, every list is followed at once.
func (c *Config) NewFeed(t *tracker.Tracker, changed func(), refused func(error),
	missing func(resource string, err error), log *zap.Logger) (*Feed, error) {
	if c.Manifests != "" {
		s := manifest.New(c.Manifests, manifestOptions(changed, refused, log))
		return &Feed{Run: func(ctx context.Context) error { return s.Run(ctx, t) }, Synced: s.Synced()}, nil
	}
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	options := c.informerOptions(changed, refused, log)
	if options.Missing = missing; missing != nil && !c.ForceTakeover {
		options.KeepMissing = tracker.SafetyPeriod
	}
	feed, logged := &Feed{failures: make(map[string]error)}, options.Reached
	options.Reached = func(resource string, err error) {
		logged(resource, err)
		feed.reached(resource, err)
	}
	s := informer.New(client, options)
	feed.Run, feed.Synced = func(ctx context.Context) error { return s.Run(ctx, t) }, s.Synced()
	return feed, nil
}

// CheckSource finds out whether there is a source to read, and leaves no trace.
func (c *Config) CheckSource() error {
	if c.Manifests == "" {
		_, err := c.Client()
		return err
	}
	file, err := os.OpenFile(c.Manifests, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe without a writer would block
	if err != nil {
		return fmt.Errorf("manifests %s: %w; --manifests takes a file or directory of YAML or JSON", c.Manifests,
			words.Cause(err))
	}
	return file.Close()
}

// Load returns a tracker with the source's present content, from which the caller builds a ruleset.
func (c *Config) Load(ctx context.Context, log *zap.Logger) (*tracker.Tracker, error) {
	t := tracker.New(c.Tracker())
	if err := c.Fill(ctx, t, log); err != nil {
		return nil, err
	}
	if t.Node() == nil {
		c.WarnNode(log)
	}
	return t, c.RequirePodCIDRs(t.Node())
}

// RequirePodCIDRs takes the pod CIDRs from a Node if the settings want that, or returns an error that says that the
// Node has none.
func (c *Config) RequirePodCIDRs(node *tracker.Node) error {
	if c.PodsFromNode && !c.UsePodCIDRs(node) {
		return fmt.Errorf("Node %s has no spec.podCIDRs, which --detect-local-mode NodeCIDR needs", c.NodeName)
	}
	return nil
}

// Fill gives a tracker the source's present content.
func (c *Config) Fill(ctx context.Context, t *tracker.Tracker, log *zap.Logger) error {
	if c.Manifests != "" {
		return manifest.Load(c.Manifests, manifestOptions(nil, nil, log), t)
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	return c.unanswered(informer.Load(ctx, client, c.informerOptions(nil, nil, log), t))
}

// objects keeps objects of manifests as they are.
type objects struct {
	tracker.Sink // takes the others
	services     []corev1.Service
	slices       []discoveryv1.EndpointSlice
}

func (o *objects) SetService(s *corev1.Service) error {
	o.services = append(o.services, *s)
	return nil
}

func (o *objects) SetSlice(s *discoveryv1.EndpointSlice) error {
	o.slices = append(o.slices, *s)
	return nil
}

// Services returns the Services of a namespace, or of all if it is empty, whose labels a selector matches, as the
// source has them now.
func (c *Config) Services(ctx context.Context, namespace string, selector labels.Selector,
	log *zap.Logger) ([]corev1.Service, error) {
	if c.Manifests != "" {
		o := &objects{Sink: tracker.New(c.Tracker())}
		err := manifest.Load(c.Manifests, manifestOptions(nil, nil, log), o)
		return slices.DeleteFunc(o.services, func(s corev1.Service) bool {
			return namespace != "" && s.Namespace != namespace || !selector.Matches(labels.Set(s.Labels))
		}), err
	}
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	list, err := client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String(),
		ResourceVersion: "0"}) // from the API server's cache: all nodes may ask at once
	if err != nil {
		return nil, c.unanswered(err)
	}
	return list.Items, nil
}

// Slices returns the EndpointSlices of a Service, as the source has them now.
func (c *Config) Slices(ctx context.Context, namespace, service string,
	log *zap.Logger) ([]discoveryv1.EndpointSlice, error) {
	if c.Manifests != "" {
		o := &objects{Sink: tracker.New(c.Tracker())}
		err := manifest.Load(c.Manifests, manifestOptions(nil, nil, log), o)
		return slices.DeleteFunc(o.slices, func(s discoveryv1.EndpointSlice) bool {
			return s.Namespace != namespace || s.Labels[discoveryv1.LabelServiceName] != service
		}), err
	}
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	list, err := client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0",
		LabelSelector: labels.Set{discoveryv1.LabelServiceName: service}.String()})
	if err != nil {
		return nil, c.unanswered(err)
	}
	return list.Items, nil
}

// AddressesOf returns the addresses of a Node, by its name, as the source has it now.
func (c *Config) AddressesOf(ctx context.Context, name string, log *zap.Logger) ([]netip.Addr, error) {
	other := c.Tracker()
	other.NodeName, other.NodeAddresses = name, nil
	t := tracker.New(other)
	if c.Manifests != "" {
		if err := c.Fill(ctx, t, log); err != nil {
			return nil, err
		}
	} else {
		client, err := c.Client()
		if err != nil {
			return nil, fmt.Errorf("address of Node %s: %w", name, err)
		}
		// The role lets the daemon list Nodes, not get one.
		nodes, err := client.CoreV1().Nodes().List(ctx,
			metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
		if err == nil && len(nodes.Items) > 0 {
			err = t.SetNode(&nodes.Items[0])
		}
		if err != nil {
			return nil, fmt.Errorf("address of Node %s: %w", name, c.unanswered(err))
		}
	}
	if t.Node() == nil {
		return nil, fmt.Errorf("there is no Node %s", name)
	}
	return t.NodeAddresses(), nil
}

// NodeOfPod returns the name of the Node whose spec.podCIDRs contain an address; empty if none has it.
func (c *Config) NodeOfPod(ctx context.Context, addr netip.Addr) (string, error) {
	if c.Manifests != "" {
		return "", nil // they may have the Node of this process alone
	}
	client, err := c.Client()
	if err != nil {
		return "", err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", c.unanswered(err)
	}
	for _, node := range nodes.Items {
		for _, text := range node.Spec.PodCIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil && prefix.Contains(addr) {
				return node.Name, nil
			}
		}
	}
	return "", nil
}

// unanswered names the API server, the reason and the remedy in the error of a request that got no
// answer. It returns other errors, and nil, unchanged.
func (c *Config) unanswered(err error) error {
	request, ok := errors.AsType[*url.Error](err)
	if !ok {
		return err
	}
	reason := request.Err
	if request.Timeout() {
		reason = errors.New("no answer in time")
	}
	server, setting := "API server", "the service account's environment"
	if u, err := url.Parse(request.URL); err == nil {
		server += " " + u.Scheme + "://" + u.Host
	}
	switch {
	case c.Connection.Master != "":
		setting = "--master"
	case c.Connection.Kubeconfig != "":
		setting = "kubeconfig " + c.Connection.Kubeconfig
	}
	return fmt.Errorf("%s: %w; check %s, or pass --manifests PATH to do without it", server, reason, setting)
}

// Client returns a client of the API server.
func (c *Config) Client() (kubernetes.Interface, error) {
	c.setWatchList()
	config, err := c.Connection.Config()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("API client: %w", err)
	}
	return client, nil
}

func manifestOptions(changed func(), refused func(error), log *zap.Logger) manifest.Options {
	return manifest.Options{
		Changed: changed,
		Refused: logRefused(log, refused),
		Problem: func(err error) { log.Error("cannot use a manifest", zap.Error(err)) },
		Notice:  func(text string) { log.Warn("kube-nft ignores a part of a manifest", zap.String("notice", text)) },
	}
}

func (c *Config) informerOptions(changed func(), refused func(error), log *zap.Logger) informer.Options {
	return informer.Options{
		NodeName:  c.NodeName,
		ProxyName: c.ServiceProxyName,
		Changed:   changed,
		Refused:   logRefused(log, refused),
		Reached: func(resource string, err error) {
			if err != nil {
				log.Warn("cannot list or watch a resource at the API server",
					zap.String("resource", resource), zap.Error(err))
				return
			}
			log.Info("the API server answers again", zap.String("resource", resource))
		},
	}
}

// Limits of lines about invalid fields in a minute: a tenant can write an object with such a field a
// thousand times a second.
const (
	fieldsPerNamespace = 100
	fieldsTotal        = 1000
)

// logRefused logs invalid fields of objects, each once a minute, and calls report with each if report is not nil.
func logRefused(log *zap.Logger, report func(error)) func(error) {
	lines := &quota.Quota{Interval: time.Minute, PerNamespace: fieldsPerNamespace, Total: fieldsTotal,
		Exceeded: func(namespace string) {
			log.Warn("too many invalid fields in this namespace; the rest is not logged this minute",
				zap.String("namespace", namespace))
		}}
	return func(err error) {
		list := []error{err}
		if joined := (interface{ Unwrap() []error })(nil); errors.As(err, &joined) {
			list = joined.Unwrap()
		}
		for _, err := range list {
			namespace := ""
			if field, ok := errors.AsType[*tracker.InvalidField](err); ok {
				namespace = field.Namespace
			}
			if lines.Allow(namespace, err.Error()) {
				log.Warn("kube-nft ignores an invalid field", zap.Error(err))
			}
			if report != nil {
				report(err)
			}
		}
	}
}
