package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

// optionsOf are those of a command line.
func optionsOf(t *testing.T, args ...string) *options {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o := new(options)
	o.addFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestWithoutNode(t *testing.T) {
	const remedy = "; a Node object of this name or another --hostname-override changes that"
	for line, want := range map[string]string{
		"":                         "node ports are not served at primary addresses, and /healthz tells load balancers that this node is not eligible",
		"--nodeport-addresses all": "/healthz tells load balancers that this node is not eligible",
		"--bind-address 192.0.2.1": "/healthz tells load balancers that this node is not eligible",
		"--manifests m":            "node ports are not served at primary addresses, and the zone of this node is not known",
		"--manifests m --nodeport-addresses 192.168.0.0/16": "the zone of this node is not known",
	} {
		if got := optionsOf(t, strings.Fields(line)...).withoutNode(); got != want+remedy {
			t.Errorf("%q: %s", line, got)
		}
	}
}

// TestWatchNode: a missing Node is said once, and again when it has come and gone.
func TestWatchNode(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	d := daemon{options: optionsOf(t, "--hostname-override", "node-9"), log: zap.New(core)}
	d.tracker = tracker.New(d.options.trackerConfig())
	settings := proxysync.Options{Committed: func(proxysync.Report) {}}
	d.watchNode(&settings)
	commit := func(want int) {
		t.Helper()
		settings.Committed(proxysync.Report{Delta: d.tracker.Take()})
		if logs.Len() != want {
			t.Errorf("%d lines, want %d: %v", logs.Len(), want, logs.All())
		}
	}
	commit(1)
	if err := d.tracker.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-9"}}); err != nil {
		t.Fatal(err)
	}
	commit(1)
	d.tracker.DeleteNode("node-9")
	commit(2)
	for _, line := range logs.All() {
		if line.Message != "no such Node: "+d.options.withoutNode() || line.ContextMap()["node"] != "node-9" {
			t.Errorf("%s %v", line.Message, line.ContextMap())
		}
	}
}

// TestNodeOf: without an API server the Node need not exist, but may go away.
func TestNodeOf(t *testing.T) {
	for args, missing := range map[string]bool{"--manifests=m": false, "--master=m": true} {
		o := optionsOf(t, args, "--hostname-override", "n")
		tr := tracker.New(o.trackerConfig())
		node := o.nodeOf(tr)
		if got := node() == nil; got != missing {
			t.Errorf("%s: missing is %v", args, got)
		}
		leaving := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", DeletionTimestamp: new(metav1.Now())}}
		if err := tr.SetNode(leaving); err != nil {
			t.Fatal(err)
		}
		if !node().Deleting {
			t.Errorf("%s: the Node is about to be deleted", args)
		}
	}
}

// TestDryRunWithoutNode: a wrong name is told, on stderr.
func TestDryRunWithoutNode(t *testing.T) {
	_, _, stderr := commandLine(t, "--dry-run", "--manifests", "testdata/inspection/cluster.yaml", "--hostname-override", "node-77")
	var line struct{ Level, Msg, Node string }
	if err := json.Unmarshal([]byte(stderr), &line); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	if line.Level != "warn" || line.Node != "node-77" || !strings.HasPrefix(line.Msg, "no such Node: node ports are not served at primary addresses, ") {
		t.Errorf("got %s", stderr)
	}
}
