package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/informer"
	"github.com/kube-nft/kube-nft/tracker/manifest"
)

// A source is where objects come from: an API server or files.
type source interface {
	// Synced is closed when the tracker has all that there is.
	Synced() <-chan struct{}
}

// A feed runs a source into a tracker.
type feed struct {
	source
	run func(context.Context) error
}

// newFeed connects the source that the options name with a tracker; changed is called when
// there is something new, note with each field that could not be used.
func (o *options) newFeed(t *tracker.Tracker, changed func(), note func(error), log *zap.Logger) (*feed, error) {
	if o.Manifests != "" {
		s := manifest.New(o.Manifests, o.manifestOptions(changed, note, log))
		return &feed{s, func(ctx context.Context) error { return s.Run(ctx, t) }}, nil
	}
	client, err := o.client()
	if err != nil {
		return nil, err
	}
	s := informer.New(client, o.informerOptions(changed, note, log))
	return &feed{s, func(ctx context.Context) error { return s.Run(ctx, t) }}, nil
}

// checkSource finds out, without a trace, whether there is a source to read from.
func (o *options) checkSource() error {
	if o.Manifests != "" {
		return checkManifests(o.Manifests)
	}
	_, err := o.client()
	return err
}

// checkManifests finds out whether a file or directory of manifests can be read.
func checkManifests(path string) error {
	const remedy = "--manifests takes a file or directory of YAML or JSON"
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe without a writer would block
	if pathError := (*fs.PathError)(nil); errors.As(err, &pathError) {
		return fmt.Errorf("manifests %s: %w; %s", path, pathError.Err, remedy)
	}
	if err != nil {
		return fmt.Errorf("manifests %s: %w; %s", path, err, remedy)
	}
	return file.Close()
}

// load fills a tracker once.
func (o *options) load(ctx context.Context, t *tracker.Tracker, log *zap.Logger) error {
	if o.Manifests != "" {
		return manifest.Load(o.Manifests, o.manifestOptions(nil, nil, log), t)
	}
	client, err := o.client()
	if err != nil {
		return err
	}
	return o.unreachable(informer.Load(ctx, client, o.informerOptions(nil, nil, log), t))
}

// unreachable makes a line of a request that got no answer: the server, the reason and what to
// do. Other errors stay as they are.
func (o *options) unreachable(err error) error {
	var request *url.Error
	if !errors.As(err, &request) {
		return err
	}
	server := "API server"
	if u, parseErr := url.Parse(request.URL); parseErr == nil {
		server += " " + u.Scheme + "://" + u.Host
	}
	setting := "the service account's environment"
	switch {
	case o.Connection.Master != "":
		setting = "--master"
	case o.Connection.Kubeconfig != "":
		setting = "kubeconfig " + o.Connection.Kubeconfig
	}
	return fmt.Errorf("%s: %w; check %s, or pass --manifests PATH to do without it", server, request.Err, setting)
}

func (o *options) client() (kubernetes.Interface, error) {
	config, err := o.Connection.Config()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("API client: %w", err)
	}
	return client, nil
}

func (o *options) manifestOptions(changed func(), note func(error), log *zap.Logger) manifest.Options {
	return manifest.Options{
		Changed: changed,
		Refused: refused(log, note),
		Problem: func(err error) { log.Error("manifest", zap.Error(err)) },
		Notice:  func(text string) { log.Warn("manifest", zap.String("notice", text)) },
	}
}

func (o *options) informerOptions(changed func(), note func(error), log *zap.Logger) informer.Options {
	return informer.Options{
		NodeName:  o.NodeName,
		ProxyName: o.ServiceProxyName,
		Changed:   changed,
		Refused:   refused(log, note),
		Reached: func(resource string, err error) {
			if err != nil {
				log.Warn("API server", zap.String("resource", resource), zap.Error(err))
				return
			}
			log.Info("API server", zap.String("resource", resource), zap.String("state", "reached again"))
		},
	}
}

// refused logs each field of an object that could not be used, and calls note with it unless
// that is nil.
func refused(log *zap.Logger, note func(error)) func(error) {
	return func(err error) {
		for _, err := range unjoin(err) {
			log.Warn("refused", zap.Error(err))
			if note != nil {
				note(err)
			}
		}
	}
}

// unjoin takes apart what errors.Join put together.
func unjoin(err error) []error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return joined.Unwrap()
	}
	return []error{err}
}
