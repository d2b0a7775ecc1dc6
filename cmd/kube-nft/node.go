package main

import (
	"fmt"

	"go.uber.org/zap"

	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

// warnNode logs that there is no Node object of this name, and what comes of it.
func (o *options) warnNode(log *zap.Logger) {
	log.Warn("no such Node: "+o.withoutNode(), zap.String("node", o.NodeName))
}

// withoutNode says what a daemon cannot do while its Node object is missing.
func (o *options) withoutNode() string {
	consequence := "/healthz tells load balancers that this node is not eligible"
	if o.Manifests != "" {
		consequence = "the zone of this node is not known"
	}
	if o.NodePorts.Primary() && len(o.NodeAddresses) == 0 {
		consequence = "node ports are not served at primary addresses, and " + consequence
	}
	return fmt.Sprintf("%s; a Node object of this name or another --hostname-override changes that", consequence)
}

// watchNode logs that the Node is missing, now and whenever it is deleted.
func (d *daemon) watchNode(settings *proxysync.Options) {
	if d.tracker.Node() == nil {
		d.options.warnNode(d.log)
	}
	committed := settings.Committed
	settings.Committed = func(r proxysync.Report) {
		committed(r)
		if r.Delta.NodeGone {
			d.options.warnNode(d.log)
		}
	}
}

// nodeOf is the Node whose state /healthz tells. Manifests need not have Node objects: without
// one nobody takes the node away.
func (o *options) nodeOf(t *tracker.Tracker) func() *tracker.Node {
	if o.Manifests == "" {
		return t.Node
	}
	unnamed := &tracker.Node{Name: o.NodeName}
	return func() *tracker.Node {
		if node := t.Node(); node != nil {
			return node
		}
		return unnamed
	}
}
