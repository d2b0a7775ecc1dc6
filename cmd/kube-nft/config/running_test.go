package config

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestRunning: a command without flags has the settings of the kube-nft that runs, wherever it is
// started; its flags win, and so does its own file.
func TestRunning(t *testing.T) {
	daemon := mustRead(t, "--config",
		proxyFile(t,
			"clusterCIDR: 10.0.0.0/8\nfeatureGates: {ComponentFlagz: false}\nnftables: {minSyncPeriod: 1s}\nclientConnection: "+
				"{kubeconfig: k/f}\n"),
		"--hostname-override", "Node-1", "--masquerade-all", "--metrics-bind-address=")
	running, err := daemon.Running(time.Unix(1700000000, 5))
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"cluster-cidr": "10.0.0.0/8", "feature-gates": "ComponentFlagz=false", "hostname-override": "Node-1",
		"kubeconfig":     "k/f",
		"masquerade-all": "true", "metrics-bind-address": "", "min-sync-period": "1s",
	}
	if diff := cmp.Diff(want, running.Changed); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	same, err := newReader(t).ReadOver(running)
	if err != nil {
		t.Fatal(err)
	}
	if same.NodeName != "node-1" || !same.MasqueradeAll || same.Gates[GateFlagz] || same.Metrics.IsValid() ||
		len(same.Notices)+len(same.Overrides) > 0 ||
		same.Connection.Kubeconfig != filepath.Join(here, "k/f") {
		t.Errorf("got %+v", same)
	}
	other, err := newReader(t, "--masquerade-all=false", "--manifests", "/m").ReadOver(running)
	if err != nil {
		t.Fatal(err)
	}
	if other.MasqueradeAll || other.Manifests != "/m" || other.Connection.Kubeconfig != "" || other.NodeName != "node-1" {
		t.Errorf("got %+v", other)
	}
	file, err := newReader(t, "--config", proxyFile(t, "hostnameOverride: other")).ReadOver(running)
	if err != nil {
		t.Fatal(err)
	}
	if file.MasqueradeAll || file.NodeName != "other" {
		t.Errorf("got %+v", file)
	}
	// A command programs or compares as the daemon after the shadow does.
	if running, err = mustRead(t, "--mode=shadow", "--takeover=auto").Running(time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	after, err := newReader(t).ReadOver(running)
	if err != nil {
		t.Fatal(err)
	}
	if after.Shadow || !after.Takeover || after.Healthz.Port() != 10256 || running.Changed["mode"] != "shadow" {
		t.Errorf("got %+v, changed %v", after, running.Changed)
	}
}
